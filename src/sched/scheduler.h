// Which tokens the device computes next, and in which pages. Takes requests in, gives StepPlans
// out, takes StepResults in, gives TokenEvents out; no device, no clock, no I/O: equal calls give
// equal plans. Thread-compatible: the engine's thread only.
//
// The loop, with overlap (max_steps_in_flight = 2):
//
//   while (scheduler.has_work()) {
//     StepPlan plan = scheduler.plan();          // step N+1, while N runs
//     if (!plan.empty()) launch(plan);
//     if (scheduler.must_commit(plan)) events = scheduler.commit(wait_for_oldest());
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attune/engine.h"
#include "attune/request.h"
#include "attune/status.h"
#include "kv/index/prefix_index.h"
#include "kv/pool/page_pool.h"
#include "sched/cache_control.h"
#include "sched/step_plan.h"

namespace attune::sched {

enum class Policy : uint8_t {
  kFcfs,  // in order of arrival
  kLpm,   // longest cached prefix first; nobody is passed over for ever
};
Result<Policy> parse_policy(const std::string& name);  // invalid_argument with the names there are

struct SchedulerConfig {
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;  // tokens, prompt and output together
  std::vector<TokenId> eos_token_ids;
  int32_t max_running_requests = 32;   // places on the device
  int32_t max_queued_requests = 0;     // 0: no bound
  int32_t chunked_prefill_size = 512;  // tokens per step, decode rows included; -1: whole prompts
  int32_t max_prefill_tokens = 16384;  // prompt tokens per step in all
  Policy policy = Policy::kFcfs;
  double conservativeness = 1.0;  // scales the guess of how much running requests will still write
  // A request that asks for more output than model or pool can hold: true: it gets what fits and
  // ends with kLength; false: add() refuses it.
  bool clamp_over_length = true;
  bool deterministic = false;  // requests without a seed all get random_seed itself
  uint64_t random_seed = 0;
  int32_t max_steps_in_flight = 2;  // 1: no overlap
  CacheConfig cache;                // of the tiers below the device

  // The most rows and tokens one plan can have: what the runner sizes its buffers by.
  int32_t max_step_rows() const { return max_running_requests; }
  int32_t max_step_tokens() const;
};

class Scheduler {
 public:
  // `index` null: no prefix cache. Both must outlive the scheduler.
  Scheduler(SchedulerConfig config, kv::PagePool& pool, kv::PrefixIndex* index);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // The two reasons to refuse a request; any thread, as they read nothing that changes.
  // invalid_argument with the parameter's name and range; resource_exhausted when `waiting`
  // requests fill the queue.
  Status check(const Request& request) const;
  Status check_queue(int64_t waiting) const;
  // Checks the request and queues it. Errors: those of both checks. What is accepted can finish
  // alone in an empty pool.
  // REQUIRES: the id is new
  Status add(RequestId id, Request request);
  // Ends it in whatever state it is: the last event (kAbort). Nothing when the id is unknown or has
  // ended already. Pages that a step in flight touches are freed when that step is committed.
  std::optional<TokenEvent> abort(RequestId id);

  // The next step. Empty: nothing to do now; there will be after the next commit or add. May be
  // called while up to max_steps_in_flight - 1 steps run: it then plans on the state these will
  // leave if no request stops but those that reach their length. A plan that is not empty must be
  // run and then answered by commit or fail_step.
  StepPlan plan();
  // The result of the oldest step in flight. REQUIRES: its id and its number of rows
  std::vector<TokenEvent> commit(const StepResult& result);
  // Instead of commit: the device could not run the oldest step. Its requests end with kError, but
  // those whose pages it was to load go back to the queue.
  std::vector<TokenEvent> fail_step(uint64_t id, const std::string& error);

  // The copies between tiers to start beside the steps, and the answers to them; null unless
  // config().cache.enabled. The loads of pages from the host are part of the plans instead.
  CacheControl* cache();

  bool has_work() const;  // requests that wait or run, or steps in flight
  int32_t steps_in_flight() const;
  // Whether the loop must commit before it plans again: `last` was empty, or as many steps are in
  // flight as may be.
  bool must_commit(const StepPlan& last) const;

  // Frees every cached page of device and host. unavailable while requests run or wait, a step is
  // in flight or copies are under way.
  Status flush_cache();
  // The fields of EngineStats that the scheduler knows: requests, pages, tokens, retractions,
  // steps.
  EngineStats stats() const;
  const SchedulerConfig& config() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attune::sched
