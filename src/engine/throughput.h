// Tokens per second over the last few seconds.
#pragma once

#include <chrono>
#include <deque>
#include <utility>

namespace attune::engine {

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

}  // namespace attune::engine
