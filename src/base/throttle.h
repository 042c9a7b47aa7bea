// Complaints of a medium or link that has failed come with every operation; few are told.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace attune::base {

class Throttle {
 public:
  // Once in ten seconds at most. Any thread.
  bool may() {
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    int64_t next = next_ns_.load();
    return now >= next && next_ns_.compare_exchange_strong(next, now + 10'000'000'000);
  }

 private:
  std::atomic<int64_t> next_ns_{0};
};

}  // namespace attune::base
