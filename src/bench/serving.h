// `attune bench serving`: load on a server over HTTP, measured as SGLang's bench_serving does.
#pragma once

#include <string>

#include "attune/status.h"
#include "bench/load_loop.h"
#include "bench/serving_metrics.h"
#include "bench/workload.h"

namespace attune::text {
class Tokenizer;
}

namespace attune::bench {

struct ServingConfig {
  std::string base_url = "http://127.0.0.1:30000";
  std::string api_key;
  std::string backend = "attune";  // attune, sglang: /generate; openai; openai-chat
  std::string model;               // empty: the first that the server lists
  WorkloadConfig workload;
  LoadOptions load;
  int32_t warmup_requests = 1;
  double temperature = -1;  // below 0: 0.6 for a lengths file, else 0
  bool disable_stream = false;
  bool disable_ignore_eos = false;
  bool flush_cache = false;  // after the warm-up
};

struct ServingResult {
  ServingSetup setup;
  ServingMetrics metrics;
  std::vector<CallRecord> records;
};

// `tokenizer` makes the texts that openai-chat sends; the other backends send ids and take null.
// Errors: those of the workload and the URL; unavailable when a warm-up request fails or none of
// the requests was completed, with what the first one met.
Result<ServingResult> run_serving(const ServingConfig& config, const text::Tokenizer* tokenizer);

}  // namespace attune::bench
