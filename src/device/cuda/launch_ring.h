// The last launches of a stream, so that a failure, which CUDA reports at some later call, can tell
// what ran before it.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>

#include "device/device.h"

namespace attune::device {

// Thread-safe: one thread launches, another may tell of a failure. Allocates only in describe().
class LaunchRing {
 public:
  static constexpr int64_t kLaunches = 8;
  static constexpr size_t kArgs = 8, kNameBytes = 64;

  // A longer name is cut, arguments past kArgs are left out. A grid of {} is none: a copy or fill.
  void record(const char* name, std::array<uint32_t, 3> grid, std::array<uint32_t, 3> block,
              std::initializer_list<LaunchArg> args);
  int64_t count() const;
  // "last launches, newest first: fill<<<4, 256>>>(n=1000), copy(bytes=16)"; "nothing was
  // launched".
  std::string describe() const;

 private:
  struct Launch {
    std::array<char, kNameBytes> name;
    std::array<uint32_t, 3> grid, block;
    std::array<LaunchArg, kArgs> args;
    size_t arg_count;
  };
  static std::string text_of(const Launch& launch);

  mutable std::mutex mutex_;
  int64_t count_ = 0;
  std::array<Launch, kLaunches> launches_{};
};

}  // namespace attune::device
