// Scheduler, pool, index and fake device in one, with what each request has heard so far.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sched/testing/fake_device.h"

namespace attune::sched::testing {

inline SchedulerConfig small_config() {
  SchedulerConfig c;
  c.vocab_size = 1000;
  c.max_model_len = 1000;
  c.eos_token_ids = {0};
  c.max_running_requests = 8;
  c.chunked_prefill_size = 16;
  return c;
}

// `n` prompt ids counted up from `first`; without end-of-sequence unless told otherwise, so that
// `max_new` tokens are what comes.
inline Request request(int32_t n, int32_t max_new, TokenId first = 1) {
  Request r;
  r.prompt.resize(size_t(n));
  for (int32_t i = 0; i < n; ++i) r.prompt[size_t(i)] = 1 + (first + i - 1) % 999;
  r.sampling.max_new_tokens = max_new;
  r.sampling.ignore_eos = true;
  r.sampling.seed = 7;
  return r;
}

struct Heard {
  std::vector<TokenId> tokens;
  std::vector<LogprobEntry> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> matched;
  Usage usage;
  std::string error;
};

class Harness {
 public:
  Harness(const SchedulerConfig& config, int32_t pages, int32_t page_size, bool radix = true)
      : pool(pages + 1, page_size),
        index(pool, kv::make_lru_policy, {"model", "f32", "hnd"}, {1, 2}),
        scheduler(config, pool, radix ? &index : nullptr),
        device(config, pool) {}

  Status try_add(RequestId id, Request r) {
    device.expect(id, r.cache_salt);
    return scheduler.add(id, std::move(r));
  }
  RequestId add(Request r) {
    const Status status = try_add(++last_id, std::move(r));
    EXPECT_TRUE(status.ok()) << status.to_string();
    return last_id;
  }
  void abort(RequestId id) {
    if (auto event = scheduler.abort(id)) hear(std::move(*event));
  }

  // One turn of the engine's loop: plans and launches, commits when it must.
  StepPlan turn() {
    StepPlan plan = scheduler.plan();
    if (!plan.empty()) {
      EXPECT_TRUE(device.launch(plan)) << device.error();
    }
    if (scheduler.must_commit(plan)) commit();
    return plan;
  }
  void commit() {
    for (TokenEvent& e : scheduler.commit(device.take_result())) hear(std::move(e));
  }
  // Until nothing is left to do; the number of turns.
  int run(int limit = 100000) {
    int turns = 0;
    for (; scheduler.has_work() && turns < limit; ++turns) turn();
    EXPECT_FALSE(scheduler.has_work());
    return turns;
  }
  // Nothing runs: every page is free or cached, and all cached ones can be had.
  void expect_at_rest() {
    EXPECT_EQ(scheduler.stats().used_pages, 0);
    EXPECT_EQ(pool.free() + index.evictable(), pool.total());
    EXPECT_EQ(index.check(), "");
  }

  void hear(TokenEvent e) {
    Heard& h = heard[e.request];
    EXPECT_EQ(h.finish, FinishReason::kNone) << "an event after the last one";
    std::ranges::move(e.tokens, std::back_inserter(h.tokens));
    std::ranges::move(e.prompt_logprobs, std::back_inserter(h.prompt_logprobs));
    h.finish = e.finish;
    h.matched = e.matched;
    h.usage = e.usage;
    h.error = e.error;
  }

  kv::PagePool pool;
  kv::PrefixIndex index;
  Scheduler scheduler;
  FakeDevice device;
  std::map<RequestId, Heard> heard;
  RequestId last_id = 0;
};

}  // namespace attune::sched::testing
