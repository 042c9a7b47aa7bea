#include "device/cuda/launch_ring.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace attune::device {
namespace {

// "4", "4x2", "4x2x8": as few as say it all.
std::string extent(const std::array<uint32_t, 3>& e) {
  std::string text = std::to_string(e[0]);
  if (e[1] != 1 || e[2] != 1) text += base::cat("x", e[1]);
  if (e[2] != 1) text += base::cat("x", e[2]);
  return text;
}

}  // namespace

void LaunchRing::record(const char* name, std::array<uint32_t, 3> grid,
                        std::array<uint32_t, 3> block, std::initializer_list<LaunchArg> args) {
  std::lock_guard lock(mutex_);
  Launch& launch = launches_[count_++ % kLaunches];
  const size_t length = std::min(std::strlen(name), kNameBytes - 1);
  std::memcpy(launch.name.data(), name, length);
  launch.name[length] = 0;
  launch.grid = grid;
  launch.block = block;
  launch.arg_count = std::min(args.size(), kArgs);
  std::copy_n(args.begin(), launch.arg_count, launch.args.begin());
}

int64_t LaunchRing::count() const {
  std::lock_guard lock(mutex_);
  return count_;
}

std::string LaunchRing::text_of(const Launch& launch) {
  std::string text = launch.name.data();
  if (launch.grid[0] > 0)
    text += base::cat("<<<", extent(launch.grid), ", ", extent(launch.block), ">>>");
  text += "(";
  for (size_t i = 0; i < launch.arg_count; ++i)
    text += base::cat(i ? ", " : "", launch.args[i].name, "=", launch.args[i].value);
  return text + ")";
}

std::string LaunchRing::describe() const {
  std::lock_guard lock(mutex_);
  if (count_ == 0) return "nothing was launched";
  std::string text = "last launches, newest first: ";
  for (int64_t i = count_ - 1; i >= std::max<int64_t>(0, count_ - kLaunches); --i)
    text += base::cat(i == count_ - 1 ? "" : ", ", text_of(launches_[i % kLaunches]));
  return text;
}

}  // namespace attune::device
