// What the scheduler promises, one thing at a time. That the answers are right in any order of
// events is for tests/sched/random_schedule_test.cc.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include "sched/testing/harness.h"

namespace attune::sched {
namespace {

using testing::expected_output;
using testing::Harness;
using testing::request;
using testing::small_config;

int32_t count(const StepPlan& plan, RowKind kind) {
  return int32_t(
      std::ranges::count_if(plan.rows, [&](const StepRow& r) { return r.kind == kind; }));
}

TEST(Scheduler, OneRequestFromPromptToLength) {
  Harness h(small_config(), 20, 4);
  const Request r = request(10, 5);
  const RequestId id = h.add(r);
  h.run();
  EXPECT_EQ(h.heard[id].tokens, expected_output(small_config(), r, 80).tokens);
  EXPECT_EQ(h.heard[id].finish, FinishReason::kLength);
  EXPECT_EQ(h.heard[id].usage.prompt_tokens, 10);
  EXPECT_EQ(h.heard[id].usage.completion_tokens, 5);
  h.expect_at_rest();
  const EngineStats s = h.scheduler.stats();
  EXPECT_EQ(s.requests_finished, 1u);
  EXPECT_EQ(s.prompt_tokens, 10u);
  EXPECT_EQ(s.generated_tokens, 5u);
  EXPECT_EQ(s.steps, 5u);  // overlap computed nothing in vain: the end was known
}

TEST(Scheduler, AdmissionCarriesSeedAndHistory) {
  for (const bool deterministic : {false, true}) {
    SchedulerConfig c = small_config();
    c.deterministic = deterministic;
    c.random_seed = 99;
    Harness h(c, 20, 4), again(c, 20, 4);
    std::vector<uint64_t> seeds;
    for (int i = 0; i < 2; ++i) {
      Request r = request(5, 2, 1 + 10 * i);
      r.sampling.seed.reset();
      h.add(r);
      again.add(r);
    }
    const StepPlan plan = h.turn();
    EXPECT_EQ(plan, again.turn());  // the same in each run
    ASSERT_EQ(plan.admissions.size(), 2u);
    EXPECT_EQ(plan.admissions[0].history, request(5, 2).prompt);
    EXPECT_EQ(plan.admissions[0].prompt_tokens, 5);
    EXPECT_EQ(plan.admissions[0].sampling.seed == plan.admissions[1].sampling.seed, deterministic);
    if (deterministic) {
      EXPECT_EQ(plan.admissions[0].sampling.seed, 99u);
    }
    h.run();
    again.run();
  }
}

TEST(Scheduler, ChunksMixWithDecodeAndNeitherStarves) {
  SchedulerConfig c = small_config();
  c.max_steps_in_flight = 1;
  Harness h(c, 200, 4);
  for (int i = 0; i < 4; ++i) h.add(request(4, 100, 1 + 10 * i));
  h.turn();
  const RequestId late = h.add(request(100, 1, 500));
  int turns = 0;
  while (h.heard[late].finish == FinishReason::kNone) {
    const StepPlan plan = h.turn();
    EXPECT_EQ(count(plan, RowKind::kDecode), 4);
    EXPECT_EQ(count(plan, RowKind::kPrefill), 1);
    EXPECT_EQ(plan.num_tokens, std::min(16, 4 + 100 - 12 * turns));
    ++turns;
  }
  EXPECT_EQ(turns, 9);  // 12 prompt tokens each beside 4 decode rows
}

TEST(Scheduler, PromptsGetAQuarterHoweverManyDecode) {
  SchedulerConfig c = small_config();
  c.max_running_requests = 40;
  c.max_steps_in_flight = 1;
  Harness h(c, 400, 4);
  for (int i = 0; i < 30; ++i) h.add(request(1, 60, 1 + 10 * i));
  while (h.scheduler.stats().waiting_requests > 0) h.turn();
  h.turn();
  h.add(request(40, 1, 700));
  const StepPlan plan = h.turn();
  EXPECT_EQ(count(plan, RowKind::kDecode), 30);
  EXPECT_EQ(plan.num_tokens, 34);
}

TEST(Scheduler, SeveralPromptsInOneStep) {
  Harness h(small_config(), 40, 4);
  for (int i = 0; i < 5; ++i) h.add(request(4, 2, 1 + 10 * i));
  const StepPlan plan = h.turn();
  EXPECT_EQ(plan.rows.size(), 4u);
  EXPECT_EQ(plan.num_tokens, 16);
  for (const StepRow& row : plan.rows) EXPECT_TRUE(row.sample);
}

TEST(Scheduler, WholePromptsWithoutChunks) {
  SchedulerConfig c = small_config();
  c.chunked_prefill_size = -1;
  c.max_prefill_tokens = 20;
  Harness h(c, 100, 4);
  h.add(request(50, 1));
  h.add(request(12, 1, 100));
  h.add(request(7, 1, 200));
  h.add(request(2, 1, 300));
  EXPECT_EQ(h.turn().num_tokens, 50);  // longer than the bound: alone
  EXPECT_EQ(h.turn().num_tokens, 19);  // 12 + 7; 2 more would be too many
  EXPECT_EQ(h.turn().num_tokens, 2);
  EXPECT_GE(c.max_step_tokens(), 50);
}

TEST(Scheduler, PrefixHitsAreCountedAndTheLastTokenIsRecomputed) {
  Harness h(small_config(), 40, 4);
  h.add(request(16, 1));
  h.run();
  const RequestId same = h.add(request(16, 1)), longer = h.add(request(19, 1));
  h.run();
  EXPECT_EQ(h.heard[same].usage.cached_tokens, 12);  // 16 would leave nothing to draw from
  EXPECT_EQ(h.heard[longer].usage.cached_tokens, 16);
  EXPECT_EQ(h.scheduler.stats().cached_tokens, 28u);
  EXPECT_EQ(h.device.computed_tokens(), 16u + 4 + 3);
}

TEST(Scheduler, GeneratedTokensAreCachedToo) {
  Harness h(small_config(), 40, 4);
  const Request first = request(6, 7);
  const RequestId id = h.add(first);
  h.run();
  Request next = first;  // the next turn of a conversation
  for (const TokenId t : h.heard[id].tokens) next.prompt.push_back(t);
  next.prompt.push_back(5);
  const RequestId turn = h.add(next);
  h.run();
  EXPECT_EQ(h.heard[turn].usage.cached_tokens, 12);  // of 13; the last drawn has no KV yet
}

TEST(Scheduler, SaltsKeepPrefixesApart) {
  Harness h(small_config(), 40, 4);
  Request r = request(16, 1);
  r.cache_salt = "tenant a";
  h.add(r);
  h.run();
  r.cache_salt = "tenant b";
  const RequestId other = h.add(r);
  h.run();
  EXPECT_EQ(h.heard[other].usage.cached_tokens, 0);
}

TEST(Scheduler, NoCacheMeansNoHits) {
  Harness h(small_config(), 40, 4, /*radix=*/false);
  h.add(request(16, 1));
  h.run();
  const RequestId again = h.add(request(16, 1));
  h.run();
  EXPECT_EQ(h.heard[again].usage.cached_tokens, 0);
  EXPECT_EQ(h.pool.free(), h.pool.total());
}

// The `n` choices of one prompt: one computes it, the others wait for its pages.
TEST(Scheduler, EqualPromptsAreComputedOnce) {
  for (const int in_flight : {1, 2}) {
    SchedulerConfig c = small_config();
    c.max_steps_in_flight = in_flight;
    Harness h(c, 200, 4);
    for (int i = 0; i < 6; ++i) {
      Request r = request(101, 3);
      r.sampling.seed = i;
      h.add(r);
    }
    const RequestId unrelated = h.add(request(3, 1, 700));
    h.turn();
    h.turn();
    EXPECT_EQ(h.scheduler.stats().running_requests, 1);
    h.run();
    // Not 6 * 101; the last few tokens are not worth waiting for.
    EXPECT_LT(h.device.computed_tokens(), 101u + 5 * 32 + 6 * 2 + 3);
    EXPECT_EQ(h.heard[unrelated].tokens.size(), 1u);
    h.expect_at_rest();
  }
}

TEST(Scheduler, WaitersGoOnWhenTheirMateIsAborted) {
  Harness h(small_config(), 200, 4);
  const RequestId first = h.add(request(101, 3));
  const RequestId second = h.add(request(101, 3));
  h.turn();
  h.turn();
  h.abort(first);
  h.run();
  EXPECT_EQ(h.heard[second].tokens.size(), 3u);
  h.expect_at_rest();
}

TEST(Scheduler, LongestPrefixFirst) {
  for (const Policy policy : {Policy::kFcfs, Policy::kLpm}) {
    SchedulerConfig c = small_config();
    c.policy = policy;
    c.max_running_requests = 1;
    Harness h(c, 100, 4);
    h.add(request(32, 1, 300));
    h.run();
    h.add(request(8, 1));
    const RequestId hit = h.add(request(34, 1, 300));
    const StepPlan plan = h.turn();
    EXPECT_EQ(plan.rows[0].request == hit, policy == Policy::kLpm);
    h.run();
  }
}

// A plan looks up some thousand pages at most: two of these prompts, and the third one in the next.
TEST(Scheduler, LongPrefixesAreLookedUpInTurns) {
  SchedulerConfig c = small_config();
  c.policy = Policy::kLpm;
  c.max_running_requests = 1;
  c.max_model_len = 4000;
  Harness h(c, 6000, 1);
  h.add(request(2500, 1, 300));
  h.run();
  std::vector<RequestId> ids;
  for (const int32_t length : {2300, 2400, 2500}) ids.push_back(h.add(request(length, 1, 300)));
  std::vector<RequestId> order;
  while (h.scheduler.has_work())
    for (const StepRow& row : h.turn().rows)
      if (order.empty() || order.back() != row.request) order.push_back(row.request);
  EXPECT_EQ(order, (std::vector<RequestId>{ids[1], ids[2], ids[0]}));
}

TEST(Scheduler, LongestPrefixFirstStarvesNobody) {
  SchedulerConfig c = small_config();
  c.policy = Policy::kLpm;
  c.max_running_requests = 1;
  Harness h(c, 100, 4);
  h.add(request(32, 1, 300));
  h.run();
  const RequestId unlucky = h.add(request(8, 1));
  int turns = 0;
  for (; h.heard[unlucky].finish == FinishReason::kNone && turns < 2000; ++turns) {
    if (h.scheduler.stats().waiting_requests < 3) h.add(request(34, 1, 300));
    h.turn();
  }
  EXPECT_LT(turns, 600);
}

TEST(Scheduler, PriorityBeforeArrival) {
  SchedulerConfig c = small_config();
  c.max_running_requests = 1;
  Harness h(c, 100, 4);
  std::vector<RequestId> ids;
  for (const int32_t priority : {0, 5, -1, 5}) {
    Request r = request(4, 1, 1 + 10 * int32_t(ids.size()));
    r.priority = priority;
    ids.push_back(h.add(r));
  }
  std::vector<RequestId> order;
  while (h.scheduler.has_work())
    for (const StepRow& row : h.turn().rows) order.push_back(row.request);
  EXPECT_EQ(order, (std::vector<RequestId>{ids[1], ids[3], ids[0], ids[2]}));
}

TEST(Scheduler, StopsAtEosAndStopIds) {
  SchedulerConfig c = small_config();
  c.vocab_size = 8;
  c.eos_token_ids = {0, 3};
  Request r = request(5, 200);
  for (TokenId& t : r.prompt) t %= 8;
  r.sampling.ignore_eos = false;
  Request ignoring = r, stop_id = r, late = r;
  ignoring.sampling.ignore_eos = true;
  stop_id.sampling.ignore_eos = true;
  stop_id.sampling.stop_token_ids = {5};
  late.sampling.min_new_tokens = 60;
  Harness h(c, 400, 4);
  const RequestId a = h.add(r), b = h.add(ignoring), d = h.add(stop_id), e = h.add(late);
  h.run();
  EXPECT_EQ(h.heard[a].finish, FinishReason::kStop);
  EXPECT_TRUE(h.heard[a].matched == 0 || h.heard[a].matched == 3);
  EXPECT_EQ(h.heard[a].matched, h.heard[a].tokens.back());
  EXPECT_EQ(h.heard[b].finish, FinishReason::kLength);
  EXPECT_FALSE(h.heard[b].matched);
  EXPECT_EQ(h.heard[d].finish, FinishReason::kStop);
  EXPECT_EQ(h.heard[d].matched, 5);
  EXPECT_GT(h.heard[e].tokens.size(), 60u);
  h.expect_at_rest();
}

TEST(Scheduler, ZeroNewTokensOnlyPrefills) {
  Harness h(small_config(), 40, 4);
  Request r = request(40, 0);
  r.sampling.prompt_logprob_start = 0;
  const RequestId id = h.add(r), bare = h.add(request(10, 0, 500));
  h.run();
  EXPECT_EQ(h.heard[id].finish, FinishReason::kLength);
  EXPECT_TRUE(h.heard[id].tokens.empty());
  EXPECT_EQ(h.heard[id].prompt_logprobs.size(), 39u);  // in three chunks
  EXPECT_EQ(h.heard[bare].finish, FinishReason::kLength);
  h.expect_at_rest();
}

TEST(Scheduler, EndsWhenTheContextIsFull) {
  SchedulerConfig c = small_config();
  c.max_model_len = 20;
  Harness h(c, 40, 4);
  const RequestId id = h.add(request(15, 100));
  h.run();
  EXPECT_EQ(h.heard[id].finish, FinishReason::kLength);
  EXPECT_EQ(h.heard[id].tokens.size(), 5u);
}

// A request that stops unforeseen has a row in the next step already: its result is dropped, and
// its pages come back only when that step is over.
TEST(Scheduler, OverlapDropsWhatWasPlannedInVain) {
  SchedulerConfig c = small_config();
  c.vocab_size = 4;
  c.eos_token_ids = {0, 1, 2, 3};  // the first draw is the last
  Harness h(c, 10, 4, /*radix=*/false);
  Request r = request(3, 50);
  for (TokenId& t : r.prompt) t = 1;
  r.sampling.ignore_eos = false;
  const RequestId id = h.add(r);
  h.turn();
  const StepPlan vain = h.turn();  // planned before the first result was known
  ASSERT_EQ(vain.rows.size(), 1u);
  EXPECT_EQ(vain.rows[0].kind, RowKind::kDecode);
  EXPECT_EQ(h.heard[id].finish, FinishReason::kStop);
  EXPECT_EQ(h.heard[id].tokens.size(), 1u);
  EXPECT_EQ(h.pool.count(kv::PageState::kDraining), 1);
  EXPECT_TRUE(h.scheduler.has_work());
  h.run();
  EXPECT_EQ(h.heard[id].tokens.size(), 1u);
  EXPECT_EQ(h.pool.free(), h.pool.total());
}

TEST(Scheduler, RetractsAndGoesOnWithTheSameTokens) {
  SchedulerConfig c = small_config();
  c.conservativeness = 0;
  std::vector<Request> requests;
  Harness h(c, 16, 2);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(request(4, 20, 1 + 50 * i));
    ids.push_back(h.add(requests.back()));
  }
  h.run();
  EXPECT_GT(h.scheduler.stats().retractions, 0u);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(h.heard[ids[i]].tokens, expected_output(c, requests[i], 32).tokens);
    EXPECT_EQ(h.heard[ids[i]].usage.cached_tokens, 0);  // of the first admission
  }
  h.expect_at_rest();
}

TEST(Scheduler, RetractsTheLeastImportantFirst) {
  SchedulerConfig c = small_config();
  c.conservativeness = 0;
  Harness h(c, 8, 2);
  Request low = request(4, 10), high = request(4, 10, 100);
  low.priority = 0;
  high.priority = 1;
  const RequestId first = h.add(low), second = h.add(high);
  h.run();
  EXPECT_GT(h.scheduler.stats().retractions, 0u);
  EXPECT_EQ(h.heard[first].tokens.size(), 10u);
  EXPECT_EQ(h.heard[second].tokens.size(), 10u);
}

TEST(Scheduler, RowAndStepErrorsEndOnlyTheirRequests) {
  SchedulerConfig c = small_config();
  c.max_steps_in_flight = 1;
  Harness h(c, 40, 4);
  const RequestId a = h.add(request(4, 5)), b = h.add(request(4, 5, 100));
  StepPlan plan = h.scheduler.plan();
  ASSERT_TRUE(h.device.launch(plan));
  StepResult result = h.device.take_result();
  result.rows[0].error = "logits are not finite";
  for (TokenEvent& e : h.scheduler.commit(result)) h.hear(std::move(e));
  EXPECT_EQ(h.heard[a].finish, FinishReason::kError);
  EXPECT_EQ(h.heard[a].error, "logits are not finite");
  plan = h.scheduler.plan();
  const RequestId later = h.add(request(4, 5, 200));
  for (TokenEvent& e : h.scheduler.fail_step(plan.id, "device lost")) h.hear(std::move(e));
  EXPECT_EQ(h.heard[b].finish, FinishReason::kError);
  EXPECT_EQ(h.heard[b].error, "device lost");
  EXPECT_EQ(h.heard[later].finish, FinishReason::kNone);
  EXPECT_EQ(h.scheduler.stats().requests_failed, 2u);
  h.abort(later);
  h.expect_at_rest();
}

TEST(Scheduler, TokenOutsideTheVocabularyIsAnError) {
  Harness h(small_config(), 40, 4);
  const RequestId id = h.add(request(4, 5));
  ASSERT_TRUE(h.device.launch(h.scheduler.plan()));
  StepResult result = h.device.take_result();
  result.rows[0].token = 1000;
  for (TokenEvent& e : h.scheduler.commit(result)) h.hear(std::move(e));
  EXPECT_EQ(h.heard[id].finish, FinishReason::kError);
  EXPECT_TRUE(h.heard[id].tokens.empty());
  h.expect_at_rest();
}

TEST(Scheduler, QueueBoundAndFlush) {
  SchedulerConfig c = small_config();
  c.max_queued_requests = 2;
  Harness h(c, 40, 4);
  h.add(request(4, 5));
  h.add(request(4, 5));
  EXPECT_EQ(h.try_add(50, request(4, 5)).code(), Code::kResourceExhausted);
  EXPECT_EQ(h.scheduler.flush_cache().code(), Code::kUnavailable);
  h.run();
  EXPECT_GT(h.index.cached(), 0);
  EXPECT_TRUE(h.scheduler.flush_cache().ok());
  EXPECT_EQ(h.pool.free(), h.pool.total());
}

TEST(Scheduler, PolicyNames) {
  EXPECT_EQ(*parse_policy("fcfs"), Policy::kFcfs);
  EXPECT_EQ(*parse_policy("lpm"), Policy::kLpm);
  EXPECT_NE(parse_policy("x").status().message().find("fcfs or lpm"), std::string::npos);
}

}  // namespace
}  // namespace attune::sched
