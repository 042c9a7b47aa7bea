#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace attune::text {
namespace {

// failure[k]: the length of the longest proper beginning of stop[0, k) that is also its end.
std::vector<size_t> failure_table(const std::string& stop) {
  std::vector<size_t> failure(stop.size() + 1, 0);
  for (size_t i = 1, k = 0; i < stop.size(); ++i) {
    while (k > 0 && stop[i] != stop[k]) k = failure[k];
    if (stop[i] == stop[k]) ++k;
    failure[i + 1] = k;
  }
  return failure;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool keep_stop)
    : stops_(std::move(stops)), matched_(stops_.size(), 0), keep_stop_(keep_stop) {
  for (const std::string& stop : stops_) failure_.push_back(failure_table(stop));
}

StopMatcher::Output StopMatcher::push(std::string_view text) {
  if (stopped()) return {.stopped = true, .which = which_};
  if (stops_.empty()) return {.text = std::string(text)};
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    for (size_t s = 0; s < stops_.size(); ++s) {
      const std::string& stop = stops_[s];
      if (stop.empty()) continue;
      size_t k = matched_[s];
      while (k > 0 && stop[k] != c) k = failure_[s][k];
      matched_[s] = k = stop[k] == c ? k + 1 : 0;
      const bool longer = which_ < 0 || stop.size() > stops_[static_cast<size_t>(which_)].size();
      if (k == stop.size() && longer) which_ = static_cast<int>(s);
    }
    if (which_ < 0) continue;
    pending_ += text.substr(0, at + 1);
    if (!keep_stop_) pending_.resize(pending_.size() - stops_[static_cast<size_t>(which_)].size());
    return {.text = std::exchange(pending_, {}), .stopped = true, .which = which_};
  }
  pending_ += text;
  const size_t held = *std::max_element(matched_.begin(), matched_.end());
  Output out{.text = pending_.substr(0, pending_.size() - held)};
  pending_.erase(0, pending_.size() - held);
  return out;
}

std::string StopMatcher::finish() {
  std::fill(matched_.begin(), matched_.end(), 0);
  return std::exchange(pending_, {});
}

}  // namespace attune::text
