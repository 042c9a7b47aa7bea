// What can be said against a request from its numbers alone.
#pragma once

#include "attune/request.h"
#include "attune/status.h"
#include "sched/scheduler.h"

namespace attune::sched {

// invalid_argument with the parameter's name, its value and its range. `pool_tokens`: what the
// whole pool can hold.
Status check_request(const SchedulerConfig& config, int64_t pool_tokens, const Request& request);

// The most tokens (prompt and output) a sequence may have.
int32_t context_limit(const SchedulerConfig& config, int64_t pool_tokens);

}  // namespace attune::sched
