#include "sched/admission.h"

#include <algorithm>
#include <cmath>

namespace attune::sched {
namespace {

constexpr double kInitialRatio = 0.7;
constexpr double kFloorFactor = 0.14;
constexpr double kDecay = 0.001;         // per step: 600 steps from the initial ratio to its floor
constexpr int32_t kLongestGuess = 4096;  // of one request, before the ratio
constexpr int32_t kSlackTokens = 20;     // per request, after a retraction

bool longer(const PageNeed& a, const PageNeed& b) {
  return a.tokens > b.tokens;
}

}  // namespace

OutputGuess::OutputGuess(double conservativeness)
    : ratio_(std::clamp(kInitialRatio * conservativeness, 0.0, 1.0)),
      floor_(ratio_ * kFloorFactor) {}

int32_t OutputGuess::tokens(int32_t remaining) const {
  return static_cast<int32_t>(std::ceil(std::min(remaining, kLongestGuess) * ratio_));
}

void OutputGuess::on_step() {
  ratio_ = std::max(ratio_ - kDecay, floor_);
}

void OutputGuess::on_retraction(int64_t generated, int64_t allowed, int32_t running) {
  const double seen = static_cast<double>(generated + int64_t{kSlackTokens} * running) /
                      static_cast<double>(std::max<int64_t>(allowed, 1));
  ratio_ = std::clamp(seen, floor_, 1.0);
}

void PageForecast::add(const PageNeed& need) {
  needs_.insert(std::ranges::upper_bound(needs_, need, longer), need);
}

// Time runs in tokens: one that still writes t tokens ends at t. Just before the k-th longest ends,
// it and all longer ones have grown by its t, and all shorter ones have given their pages back.
int32_t PageForecast::peak_with(const PageNeed& candidate) const {
  const auto place = std::ranges::upper_bound(needs_, candidate, longer);
  int64_t held_by_shorter = 0, now_of_longer = 0, alive = 0, peak = candidate.now;
  for (const PageNeed& n : needs_) held_by_shorter += n.held;
  const auto reach = [&](const PageNeed& n) {
    now_of_longer += n.now;
    held_by_shorter -= n.held;
    const int64_t growth = (n.tokens + page_size_ - 1) / page_size_;
    peak = std::max(peak, now_of_longer + ++alive * growth - held_by_shorter);
  };
  for (auto n = needs_.begin(); n != needs_.end(); ++n) {
    if (n == place) held_by_shorter += candidate.held, reach(candidate);
    reach(*n);
  }
  if (place == needs_.end()) held_by_shorter += candidate.held, reach(candidate);
  return static_cast<int32_t>(std::min<int64_t>(peak, INT32_MAX));
}

}  // namespace attune::sched
