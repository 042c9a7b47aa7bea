#include <algorithm>
#include <cstdint>

#include "sched/scheduler.h"

namespace attune::sched {

Result<Policy> parse_policy(const std::string& name) {
  if (name == "fcfs") return Policy::kFcfs;
  if (name == "lpm") return Policy::kLpm;
  return invalid_argument("schedule_policy '" + name + "': expected fcfs or lpm");
}

int32_t SchedulerConfig::max_step_tokens() const {
  const int64_t prefill = chunked_prefill_size > 0
                              ? std::min(chunked_prefill_size, max_prefill_tokens)
                              : std::max(max_prefill_tokens, max_model_len);
  return static_cast<int32_t>(std::min<int64_t>(prefill + max_running_requests, INT32_MAX));
}

}  // namespace attune::sched
