// What /metrics shows, in Prometheus' text format 0.0.4. Belongs to the loop's thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "attune/engine.h"

namespace attune::server {

// Seconds, from 1 ms to an hour.
class Histogram {
 public:
  static constexpr std::array<double, 24> kBounds = {
      0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4,  0.8,  1,
      2,     5,     10,    20,   40,   60,   120,  300, 600, 1200, 1800, 3600};

  void observe(double value, uint64_t times = 1);
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  uint64_t bucket(size_t i) const { return buckets_[i]; }  // values in (bound i - 1, bound i]

 private:
  std::array<uint64_t, kBounds.size() + 1> buckets_{};
  uint64_t count_ = 0;
  double sum_ = 0;
};

struct Metrics {
  Histogram time_to_first_token;  // from the request's first byte to its first token, queueing too
  Histogram inter_token_latency;  // between tokens of one choice: one value fewer than tokens
  Histogram e2e_latency;          // from the first byte to the end of the answer
  uint64_t requests = 0;          // generating ones that were understood
  uint64_t aborted = 0;           // given up by the client, a time limit or a shutdown
  uint64_t refused = 0;           // answered with an error status
  uint64_t prompt_tokens = 0, cached_tokens = 0, generation_tokens = 0;  // of choices that ended
};

// `stats` is the engine's reading, `connections` the HTTP server's.
std::string metrics_text(const Metrics& metrics, const EngineStats& stats, size_t connections,
                         std::string_view model_name);

}  // namespace attune::server
