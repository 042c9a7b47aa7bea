#include "device/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace attune::device {
namespace {

// The number behind `key` at the start of a line, or the file's first; -1: there is none.
int64_t read_number(const char* path, std::string_view key) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(key)) continue;
    std::istringstream words(line.substr(key.size()));
    int64_t value = -1;
    return words >> value ? value : -1;
  }
  return -1;
}

}  // namespace

HostMemory host_memory() {
  HostMemory memory{std::max<int64_t>(0, read_number("/proc/meminfo", "MemTotal:")) * 1024,
                    std::max<int64_t>(0, read_number("/proc/meminfo", "MemAvailable:")) * 1024};
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
  const int64_t used = read_number("/sys/fs/cgroup/memory.current", "");
  if (limit > 0 && used >= 0) {
    memory.total = std::min(memory.total, limit);
    memory.available = std::clamp<int64_t>(limit - used, 0, memory.available);
  }
  return memory;
}

}  // namespace attune::device
