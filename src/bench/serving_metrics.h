// The figures of a serving run, under the names that SGLang's bench_serving gives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/dialect.h"
#include "formats/json.h"

namespace attune::bench {

// Of a set of times, in milliseconds. Percentiles are interpolated linearly, the deviation is that
// of the population, both as numpy does.
struct TimeStats {
  double mean = 0, median = 0, std = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// None when there are no values: a time that was not measured is not zero.
std::optional<TimeStats> time_stats(std::vector<double> seconds);

// Of the requests that are a chat's turns of one number.
struct TurnMetrics {
  int64_t completed = 0, input_tokens = 0, cached_tokens = 0;
  std::optional<TimeStats> ttft;
};

struct ServingMetrics {
  double duration_s = 0;
  int64_t completed = 0, failed = 0;
  std::string first_error;
  int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;  // of completed requests
  double concurrency = 0;                                          // requests under way, on average
  std::optional<TimeStats> ttft, tpot, itl, e2e;
  std::vector<TurnMetrics> turns;  // empty where no chat has more than one
};

ServingMetrics measure(const std::vector<CallRecord>& records, double duration_s);

// What was asked for, to stand with the figures.
struct ServingSetup {
  std::string backend, dataset;
  double request_rate = 0;      // 0: all at once
  int32_t max_concurrency = 0;  // 0: no bound
};

// One object; a time that was not measured is null.
formats::Json to_json(const ServingSetup& setup, const ServingMetrics& metrics);
// input_lens, output_lens, ttfts, itls, generated_texts, errors: one entry for each request.
void add_details(const std::vector<CallRecord>& records, formats::Json& result);
// The block titled "Serving Benchmark Result".
std::string to_table(const ServingSetup& setup, const ServingMetrics& metrics);

}  // namespace attune::bench
