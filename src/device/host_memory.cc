#include "device/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace attune::device {
namespace {

// The number behind `key` at the start of a line, or the file's first; -1: there is none, as for
// "max".
int64_t read_number(const std::string& path, std::string_view key) {
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

// Cuts `memory` to what a control group has, where it has a limit.
void limit_to_group(HostMemory& memory, const std::string& limit_file, const std::string& used_file,
                    const std::string& stat_file) {
  const int64_t limit = read_number(limit_file, ""), used = read_number(used_file, "");
  if (limit < 0 || used < 0) return;
  // Cached files count as used, and go when memory is short.
  const int64_t cache = std::max<int64_t>(0, read_number(stat_file, "inactive_file "));
  memory.total = std::min(memory.total, limit);
  memory.available =
      std::clamp<int64_t>(limit - std::max<int64_t>(0, used - cache), 0, memory.available);
}

}  // namespace

HostMemory host_memory() {
  HostMemory memory{std::max<int64_t>(0, read_number("/proc/meminfo", "MemTotal:")) * 1024,
                    std::max<int64_t>(0, read_number("/proc/meminfo", "MemAvailable:")) * 1024};
  const std::string v2 = "/sys/fs/cgroup/", v1 = "/sys/fs/cgroup/memory/";
  limit_to_group(memory, v2 + "memory.max", v2 + "memory.current", v2 + "memory.stat");
  limit_to_group(memory, v1 + "memory.limit_in_bytes", v1 + "memory.usage_in_bytes",
                 v1 + "memory.stat");
  return memory;
}

}  // namespace attune::device
