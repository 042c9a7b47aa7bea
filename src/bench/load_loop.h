// Sends requests to a server at given times, many at once, and times every token that comes back.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/dialect.h"
#include "bench/http_call.h"

namespace attune::bench {

struct LoadOptions {
  // Requests a second, with exponentially distributed gaps; 0: all at once.
  double request_rate = 0;
  int32_t max_concurrency = 0;  // requests under way at a time; 0: no bound
  double idle_timeout_s = 600;  // a request that brings no byte for so long has failed
  uint64_t seed = 1;            // of the gaps
};

struct LoadResult {
  std::vector<CallRecord> records;  // one for each request, in order
  double duration_s = 0;            // first start to last end
};

// Runs on the calling thread until every request has ended: one connection each, no thread each.
// Requests wait in one line, a chat's next turn from the end of its turn on (PromptWork::next); a
// failed turn fails those after it. `work`: `next` is above the item's own place or -1.
// What befalls a single request is told in its record; io_error: the loop itself cannot run.
Result<LoadResult> run_load(const HttpTarget& target, const AskOptions& ask,
                            std::vector<PromptWork> work, const LoadOptions& options);

// When each of `count` requests is due, in seconds after the start.
std::vector<double> due_times(size_t count, double request_rate, uint64_t seed);

}  // namespace attune::bench
