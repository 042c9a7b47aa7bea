// Rates that the step loop measures.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>

namespace attune::engine {

// Tokens per second over the last few seconds.
class Throughput {
 public:
  using Time = std::chrono::steady_clock::time_point;
  void add(Time now, size_t tokens) {
    if (tokens == 0) return;
    samples_.emplace_back(now, tokens);
    forget(now);
  }
  double per_second(Time now) const {
    double sum = 0;
    for (const auto& [at, tokens] : samples_)
      if (now - at <= kWindow) sum += static_cast<double>(tokens);
    return sum / std::chrono::duration<double>(kWindow).count();
  }

 private:
  static constexpr std::chrono::seconds kWindow{5};
  void forget(Time now) {
    while (!samples_.empty() && now - samples_.front().first > kWindow) {
      samples_.pop_front();
    }
  }
  std::deque<std::pair<Time, size_t>> samples_;
};

// Prompt tokens per second of recent steps, each counted from when the device could begin it.
class PrefillRate {
 public:
  using Time = std::chrono::steady_clock::time_point;
  void add(int32_t tokens, Time launched, Time finished) {
    const std::chrono::duration<double> took = finished - std::max(launched, last_finished_);
    last_finished_ = finished;
    if (tokens < kLeast || took.count() <= 0) return;
    const double rate = tokens / took.count();
    rate_ = rate_ == 0 ? rate : rate_ + kWeight * (rate - rate_);
  }
  double per_second() const { return rate_; }  // 0: nothing measured yet

 private:
  static constexpr int32_t kLeast = 32;  // tokens; fewer say little
  static constexpr double kWeight = 0.2;
  Time last_finished_;
  double rate_ = 0;
};

}  // namespace attune::engine
