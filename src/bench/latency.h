// `attune bench latency`: one batch after another through an engine in this process, as SGLang's
// bench_one_batch does: the time of the prompts, and of each decode step after them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attune/engine.h"
#include "bench/trace.h"
#include "device/trace.h"

namespace attune::bench {

struct LatencyConfig {
  std::vector<int32_t> batch_sizes = {1};
  int32_t input_len = 512;   // tokens of each prompt, random ids, no shared prefix
  int32_t output_len = 128;  // tokens generated for each
  int32_t repeats = 3;       // of each batch size, after one that is not counted; medians are told
  uint64_t seed = 1;
};

struct LatencyRow {
  int32_t batch_size = 0, input_len = 0, output_len = 0;
  double prefill_s = 0;           // submission to the last first token
  double prefill_throughput = 0;  // prompt tokens/s
  double median_decode_s = 0;     // between two tokens of one request
  double decode_throughput = 0;   // tokens/s from the last first token to the last token
  double total_s = 0;
  double overall_throughput = 0;  // input and output tokens/s
};

Result<std::vector<LatencyRow>> run_latency(Engine& engine, const LatencyConfig& config);

std::string to_json(const LatencyRow& row);  // one line
std::string to_table(const std::vector<LatencyRow>& rows);

// Of one batch size.
struct TracedBatch {
  int32_t batch_size = 0;
  StepTimes times;
  device::Trace trace;  // of the prompts too
};
// One more run of each batch size, for an engine that has made run_latency's. Errors:
// run_latency's, the tracer's, and invalid_argument where no step is steady.
Result<std::vector<TracedBatch>> trace_latency(Engine& engine, const LatencyConfig& config,
                                               device::Tracer& tracer);
std::string to_json(const TracedBatch& batch);  // one line
std::string to_table(const TracedBatch& batch);

}  // namespace attune::bench
