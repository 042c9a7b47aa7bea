// Bugs that other engines had (docs: kinds D and G), each as a test.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "sched/testing/harness.h"

namespace attune::sched {
namespace {

using testing::expected_output;
using testing::Harness;
using testing::request;
using testing::small_config;

// After a disconnect the request is gone and its pages are free within two steps, in every state.
TEST(BugG01, DisconnectFreesThePagesInEveryState) {
  for (const int in_flight : {1, 2, 3}) {
    for (int abort_at = 0; abort_at < 25; ++abort_at) {
      SchedulerConfig c = small_config();
      c.max_steps_in_flight = in_flight;
      c.max_running_requests = 2;
      Harness h(c, 40, 4);
      const RequestId other = h.add(request(4, 100, 300));
      const RequestId gone = h.add(request(60, 12));  // four chunks, then decode
      for (int i = 0; i < abort_at; ++i) h.turn();
      const bool over = h.heard[gone].finish != FinishReason::kNone;
      h.abort(gone);
      EXPECT_EQ(h.heard[gone].finish, over ? FinishReason::kLength : FinishReason::kAbort);
      for (int i = 0; i < in_flight; ++i) h.turn();
      EXPECT_EQ(h.scheduler.stats().running_requests, 1);
      EXPECT_LE(h.scheduler.stats().used_pages, 2 + abort_at / 4 + in_flight);
      h.abort(other);
      h.run();
      h.expect_at_rest();
    }
  }
}

TEST(BugG02, EmptyPromptHurtsNobodyElse) {
  Harness h(small_config(), 40, 4);
  const RequestId other = h.add(request(4, 5));
  h.turn();
  Request empty;
  EXPECT_EQ(h.try_add(77, empty).code(), Code::kInvalidArgument);
  h.run();
  EXPECT_EQ(h.heard[other].tokens.size(), 5u);
}

// Somebody else takes pages away and gives them back at random: a shortage is a scheduling event.
TEST(BugG04, AShortageThatPassesEndsNothing) {
  std::mt19937 rng(1);
  Harness h(small_config(), 30, 4);
  std::vector<kv::PageReservation> taken;
  std::vector<std::pair<RequestId, Request>> added;
  for (int turn = 0; turn < 20000 && (added.size() < 200 || h.scheduler.has_work()); ++turn) {
    if (added.size() < 200 && h.scheduler.stats().waiting_requests < 3) {
      const Request r = request(1 + int32_t(rng() % 40), int32_t(rng() % 30), int32_t(rng() % 900));
      added.emplace_back(h.add(r), r);
    }
    if (rng() % 10 == 0)
      if (auto r = h.pool.reserve(int32_t(rng() % 30))) taken.push_back(std::move(*r));
    h.turn();
    if (rng() % 3 == 0) taken.clear();
  }
  EXPECT_FALSE(h.scheduler.has_work());
  taken.clear();
  for (const auto& [id, r] : added)
    EXPECT_EQ(h.heard[id].tokens, expected_output(small_config(), r, 120).tokens);
  h.expect_at_rest();
}

TEST(BugG05, LoneRequestThatOutgrowsThePoolEndsWithItsPartialText) {
  Harness h(small_config(), 16, 4);
  const RequestId id = h.add(request(60, 100));
  h.run();
  EXPECT_EQ(h.heard[id].finish, FinishReason::kLength);
  EXPECT_EQ(h.heard[id].tokens.size(), 4u);
  const RequestId next = h.add(request(10, 3, 500));
  h.run();
  EXPECT_EQ(h.heard[next].tokens.size(), 3u);
  SchedulerConfig strict = small_config();
  strict.clamp_over_length = false;
  Harness refusing(strict, 16, 4);
  EXPECT_EQ(refusing.try_add(1, request(60, 100)).code(), Code::kInvalidArgument);
}

TEST(BugG07, WhatIsAcceptedCanFinish) {
  for (int32_t pages = 1; pages <= 70; ++pages) {
    for (const int32_t page_size : {1, 4}) {
      Harness h(small_config(), pages, page_size);
      const int32_t tokens = pages * page_size;
      int accepted = 0;
      for (int32_t prompt = std::max(1, tokens - 5); prompt <= tokens + 3; ++prompt) {
        for (const int32_t output : {0, 1, 4, 100}) {
          if (!h.try_add(++h.last_id, request(prompt, output)).ok()) continue;
          ++accepted;
          const RequestId id = h.last_id;
          h.run(2000);
          ASSERT_EQ(h.heard[id].finish, FinishReason::kLength);
          ASSERT_EQ(int32_t(h.heard[id].tokens.size()), std::min(output, tokens - prompt));
        }
      }
      ASSERT_GT(accepted, 0);
    }
  }
}

// After a phase of retractions as many requests run side by side as before.
TEST(BugG09, ThroughputComesBackAfterAPressurePhase) {
  SchedulerConfig c = small_config();
  c.conservativeness = 0.5;
  Harness h(c, 64, 4);
  int32_t next = 1;
  const auto steps_for = [&](int requests, int32_t output) {
    const uint64_t before = h.scheduler.stats().steps;
    for (int i = 0; i < requests; ++i) h.add(request(8, output, next += 13));
    h.run();
    return h.scheduler.stats().steps - before;
  };
  const uint64_t easy = steps_for(200, 12);
  steps_for(40, 110);
  EXPECT_GT(h.scheduler.stats().retractions, 5u);
  EXPECT_LE(steps_for(200, 12), easy + easy / 10);
}

TEST(BugG10, FreeAndCachedAreAllAtAnyPageSizeAndLength) {
  for (const int32_t page_size : {1, 2, 3, 16, 64}) {
    SchedulerConfig c = small_config();
    c.vocab_size = 20;
    Harness h(c, 256 / page_size + 4, page_size);
    for (int32_t n = 1; n <= 200; n += n < 70 ? 1 : 13) {
      for (const bool stop : {false, true}) {
        Request r = request(n, 9);
        for (TokenId& t : r.prompt) t = t % 20;
        r.sampling.ignore_eos = !stop;
        h.add(r);
        h.run();
        h.expect_at_rest();
        const RequestId aborted = h.add(r);
        for (int i = 0; i < n % 5; ++i) h.turn();
        h.abort(aborted);
        h.run();
        h.expect_at_rest();
      }
    }
  }
}

// No value of a client's field is special: all of them are cached and accounted alike.
TEST(BugG12, NoClientValueIsASentinel) {
  for (const std::string& salt : {std::string(), std::string("\0", 1), std::string("2.2.2.2"),
                                  std::string(100000, 'x'), std::string("model")}) {
    Harness h(small_config(), 40, 4);
    Request r = request(60, 2);  // longer than a chunk
    r.cache_salt = r.label = salt;
    r.priority = salt.empty() ? INT32_MIN : INT32_MAX;
    h.add(r);
    h.run();
    h.expect_at_rest();
    const RequestId again = h.add(r);
    h.run();
    EXPECT_EQ(h.heard[again].usage.cached_tokens, 56);
    h.expect_at_rest();
  }
}

TEST(BugG15, UsageShowsTheClampedLength) {
  SchedulerConfig c = small_config();
  c.max_model_len = 100;
  Harness h(c, 40, 4);
  const RequestId id = h.add(request(90, 200));
  h.run();
  EXPECT_EQ(h.heard[id].usage.completion_tokens, 10);
  EXPECT_EQ(h.heard[id].finish, FinishReason::kLength);
}

TEST(BugG22, PromptLogprobsAreTheSameWarmAndCold) {
  for (const int32_t start : {0, 1, 2, 17, 30, 38, 39, 40}) {
    Harness h(small_config(), 40, 4);
    Request r = request(40, 2);
    r.sampling.prompt_logprob_start = start;
    const RequestId cold = h.add(r);
    h.run();
    const RequestId warm = h.add(r);
    h.run();
    const size_t want = size_t(40 - std::clamp(start, 1, 40));
    ASSERT_EQ(h.heard[cold].prompt_logprobs.size(), want) << start;
    ASSERT_EQ(h.heard[warm].prompt_logprobs.size(), want) << start;
    for (size_t i = 0; i < want; ++i)
      EXPECT_EQ(h.heard[warm].prompt_logprobs[i].chosen.logprob,
                h.heard[cold].prompt_logprobs[i].chosen.logprob);
    // Only what lies before the first wanted position may come from the cache, and usage says so.
    const int32_t reusable = start == 40 ? 39 : std::max(start, 1) - 1;
    EXPECT_EQ(h.heard[warm].usage.cached_tokens, reusable / 4 * 4) << start;
  }
}

int64_t resident_bytes() {
  long pages = 0;
  if (FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
    std::fclose(f);
  }
  return pages * 4096L;
}

void soak(int requests, Harness& h, std::mt19937& rng) {
  std::vector<RequestId> live;
  for (int i = 0; i < requests; ++i) {
    Request r = request(1 + int32_t(rng() % 20), int32_t(rng() % 6), int32_t(rng() % 900));
    r.cache_salt = std::to_string(rng() % 50);
    live.push_back(h.add(std::move(r)));
    if (rng() % 3 == 0) h.abort(live[rng() % live.size()]);
    while (h.scheduler.stats().waiting_requests > 4) h.turn();
    if (live.size() > 16) live.erase(live.begin(), live.begin() + 8);
    if (h.heard.size() > 1000) h.heard.clear();
  }
  h.run();
  h.expect_at_rest();
}

TEST(BugG25, MemoryIsFlatOver100kRequests) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr int64_t kMayGrow = 1 << 30;  // its quarantine of freed memory, 256 MiB by default
#else
  constexpr int64_t kMayGrow = 50 << 20;
#endif
  Harness h(small_config(), 60, 4);
  std::mt19937 rng(2);
  soak(10000, h, rng);
  const int64_t before = resident_bytes();
  soak(90000, h, rng);
  EXPECT_LT(resident_bytes() - before, kMayGrow);
}

TEST(BugD37, AFullPoolRequestIsAdmittedAfterASoakWithAborts) {
  Harness h(small_config(), 60, 4);
  std::mt19937 rng(3);
  soak(100000, h, rng);
  const RequestId full = h.add(request(239, 1));
  h.run();
  EXPECT_EQ(h.heard[full].tokens.size(), 1u);
}

// Reuse ends at a page border: at most a page is computed again, and the answer does not change.
TEST(BugL18, APartialPageCostsLessThanAPage) {
  Harness h(small_config(), 40, 16);
  h.add(request(16 * 6 + 9, 1));
  h.run();
  const uint64_t before = h.device.computed_tokens();
  Request r = request(16 * 6 + 9, 1);
  r.prompt.push_back(5);
  const RequestId id = h.add(r);
  h.run();
  EXPECT_EQ(h.device.computed_tokens() - before, 10u);
  EXPECT_EQ(h.heard[id].tokens, expected_output(small_config(), r, 640).tokens);
}

}  // namespace
}  // namespace attune::sched
