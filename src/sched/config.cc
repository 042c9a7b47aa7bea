#include <algorithm>

#include "sched/scheduler.h"

namespace attune::sched {

Result<Policy> parse_policy(const std::string& name) {
  if (name == "fcfs") return Policy::kFcfs;
  if (name == "lpm") return Policy::kLpm;
  return invalid_argument("schedule_policy '" + name + "': expected fcfs or lpm");
}

int32_t SchedulerConfig::max_step_tokens() const {
  const int32_t prefill = chunked_prefill_size > 0
                              ? std::min(chunked_prefill_size, max_prefill_tokens)
                              : std::max(max_prefill_tokens, max_model_len);
  return prefill + max_running_requests;
}

}  // namespace attune::sched
