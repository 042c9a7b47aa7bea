// The engine's life around the steps: refusals, aborts at any point, draining, tight memory,
// recording. On a small random model, so that each test takes milliseconds.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "engine/testing.h"
#include "sched/step_plan.h"

namespace attune {
namespace {

using engine::testing::Collector;
using engine::testing::expect_nothing_held;
using engine::testing::make_engine;
using engine::testing::small_options;
using engine::testing::start;
using engine::testing::Started;
using engine::testing::tokens;

std::vector<TokenId> prompt(int32_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(3 + random() % 90);
  return ids;
}

TEST(Engine, RefusesWhatCannotBeServedAndSaysWhy) {
  auto engine = make_engine(small_options());
  ASSERT_TRUE(engine);
  struct Case {
    Request request;
    const char* says;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Case& c :
       {Case{{.prompt = {}}, "prompt"}, Case{{.prompt = {96}}, "96"}, Case{{.prompt = {-1}}, "-1"},
        Case{{.prompt = prompt(128)}, "128"},
        Case{{.prompt = {5}, .sampling = {.temperature = nan}}, "temperature"},
        Case{{.prompt = {5}, .sampling = {.top_p = 0}}, "top_p"},
        Case{{.prompt = {5}, .sampling = {.min_p = 2}}, "min_p"},
        Case{{.prompt = {5}, .sampling = {.presence_penalty = 3}}, "presence_penalty"},
        Case{{.prompt = {5}, .sampling = {.max_new_tokens = -4}}, "max_new_tokens"}}) {
    const auto refused = engine->submit(c.request, std::make_shared<Collector>());
    ASSERT_FALSE(refused.ok()) << c.says;
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(c.says), std::string::npos)
        << refused.status().message();
  }
  auto good = start(*engine, {5}, tokens(3));
  good->wait();
  EXPECT_EQ(good->tokens.size(), 3u);
  expect_nothing_held(*engine);
}

// G-01 on the engine's side: whoever leaves, leaves at once, also in the middle of a long prompt.
TEST(BugG01, AbortAtAnyPointFreesEverything) {
  Options options = small_options();
  options.chunked_prefill_size = 8;
  auto engine = make_engine(options);
  ASSERT_TRUE(engine);
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<Started> all;
    for (int i = 0; i < 6; ++i)
      all.push_back(
          start(*engine, prompt(20 + random() % 80, random() % 4), tokens(1 + random() % 20)));
    for (size_t i = 0; i < all.size(); ++i) {
      if (random() % 2) all[i]->wait_for_tokens(random() % 4);
      engine->abort(all[i].id);
      engine->abort(all[i].id);  // twice: nothing more
    }
    for (Started& s : all) {
      s->wait();
      EXPECT_TRUE(s->finish == FinishReason::kAbort || s->finish == FinishReason::kLength);
    }
    // A step in flight may hold pages until it is committed; one more request passes behind it.
    start(*engine, {7}, tokens(1))->wait();
  }
  engine->drain(5);
  EXPECT_EQ(engine->stats().used_pages, 0);
  const CacheTierStats tier = engine->stats().cache_tiers.at(0);
  EXPECT_GT(tier.budget_bytes, 0);
  EXPECT_EQ(tier.bytes * tier.total_pages, tier.budget_bytes * tier.pages);
}

TEST(Engine, QueueBoundIsTold) {
  Options options = small_options();
  options.max_running_requests = 1;
  options.max_queued_requests = 2;
  auto engine = make_engine(options);
  ASSERT_TRUE(engine);
  std::vector<Started> all;
  Code code = Code::kOk;
  for (int i = 0; i < 12 && code == Code::kOk; ++i) {
    Request request{.prompt = prompt(60, i), .sampling = tokens(60)};
    auto sink = std::make_shared<Collector>();
    auto id = engine->submit(std::move(request), sink);
    if (id.ok()) all.push_back({*id, sink});
    code = id.status().code();
  }
  EXPECT_EQ(code, Code::kResourceExhausted);
  for (Started& s : all) s->wait();
}

TEST(Engine, DrainLetsRunningOnesEndAndRefusesNewOnes) {
  auto engine = make_engine(small_options());
  ASSERT_TRUE(engine);
  auto running = start(*engine, prompt(30), tokens(40));
  engine->drain(60);
  EXPECT_EQ(running->tokens.size(), 40u);
  EXPECT_EQ(engine->submit({.prompt = {5}}, std::make_shared<Collector>()).status().code(),
            Code::kUnavailable);
}

TEST(Engine, DrainAbortsAfterItsTime) {
  Options options = small_options();
  options.attention_backend = "reference";
  auto engine = make_engine(options);
  ASSERT_TRUE(engine);
  std::vector<Started> all;
  for (int i = 0; i < 8; ++i) all.push_back(start(*engine, prompt(20, i), tokens(100)));
  engine->drain(0);
  for (Started& s : all) {
    s->wait();
    EXPECT_TRUE(s->finish == FinishReason::kAbort || s->finish == FinishReason::kLength);
  }
}

TEST(Engine, DestructionEndsWhatRuns) {
  Started s;
  {
    auto engine = make_engine(small_options());
    ASSERT_TRUE(engine);
    s = start(*engine, prompt(40), tokens(80));
  }
  s->wait();
  EXPECT_NE(s->finish, FinishReason::kNone);
}

TEST(Engine, FlushWhileBusyIsRefused) {
  auto engine = make_engine(small_options());
  ASSERT_TRUE(engine);
  auto running = start(*engine, prompt(30), tokens(90));
  EXPECT_EQ(engine->flush_cache().code(), Code::kUnavailable);
  running->wait();
  EXPECT_TRUE(engine->flush_cache().ok());
}

// A pool that holds less than the requests want: some are retracted and all end with the same
// tokens.
TEST(Engine, RetractionChangesNoToken) {
  Options roomy = small_options(), tight = small_options();
  tight.max_total_tokens = 128;
  auto a = make_engine(roomy), b = make_engine(tight);
  ASSERT_TRUE(a && b);
  SamplingParams sampling{
      .temperature = 0.8f, .top_p = 0.9f, .seed = 5, .max_new_tokens = 60, .ignore_eos = true};
  std::vector<Started> in_a, in_b;
  for (int i = 0; i < 6; ++i) {
    in_a.push_back(start(*a, prompt(16, i), sampling));
    in_b.push_back(start(*b, prompt(16, i), sampling));
  }
  for (int i = 0; i < 6; ++i) {
    in_a[i]->wait();
    in_b[i]->wait();
    EXPECT_EQ(in_a[i]->tokens, in_b[i]->tokens) << i;
    EXPECT_EQ(in_b[i]->usage.completion_tokens, 60);
  }
  EXPECT_GT(b->stats().retractions, 0u);
  expect_nothing_held(*b);
}

TEST(Engine, StopsAtStopIdsAndHonoursMinNewTokens) {
  auto engine = make_engine(small_options());
  ASSERT_TRUE(engine);
  auto free = start(*engine, prompt(10), tokens(20));
  free->wait();
  SamplingParams sampling = tokens(20);
  sampling.stop_token_ids = {free->tokens[4]};
  const auto first =
      std::find(free->tokens.begin(), free->tokens.end(), free->tokens[4]) - free->tokens.begin();
  auto stopped = start(*engine, prompt(10), sampling);
  stopped->wait();
  EXPECT_EQ(stopped->finish, FinishReason::kStop);
  EXPECT_EQ(stopped->tokens.size(), static_cast<size_t>(first + 1));
  sampling.min_new_tokens = 12;
  auto longer = start(*engine, prompt(10), sampling);
  longer->wait();
  EXPECT_GE(longer->tokens.size(), 12u);
  for (size_t i = 0; i < 11; ++i) EXPECT_NE(longer->tokens[i], free->tokens[4]);
}

TEST(Engine, SecondRequestFindsThePrefix) {
  auto engine = make_engine(small_options());
  ASSERT_TRUE(engine);
  auto first = start(*engine, prompt(50), tokens(4));
  first->wait();
  EXPECT_EQ(first->usage.cached_tokens, 0);
  auto second = start(*engine, prompt(50), tokens(4));
  second->wait();
  EXPECT_EQ(second->usage.cached_tokens, 48);
  EXPECT_EQ(second->tokens, first->tokens);
}

TEST(Engine, RecordedPlansParse) {
  const std::string path =
      ::testing::TempDir() + "attune_plans_" + std::to_string(getpid()) + ".jsonl";
  Options options = small_options();
  options.record_plans = path;
  {
    auto engine = make_engine(options);
    ASSERT_TRUE(engine);
    start(*engine, prompt(30), tokens(5))->wait();
  }
  std::ifstream in(path);
  std::string line;
  int32_t plans = 0, prefilled = 0;
  while (std::getline(in, line)) {
    auto plan = sched::parse_step_plan(line);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    EXPECT_EQ(plan->to_json(), line);
    for (const sched::StepRow& row : plan->rows)
      if (row.kind == sched::RowKind::kPrefill) prefilled += row.num_tokens;
    ++plans;
  }
  EXPECT_GE(plans, 5);
  EXPECT_EQ(prefilled, 30);
  unlink(path.c_str());
}

TEST(Engine, ManyThreadsSubmitAndAbort) {
  auto engine = make_engine(small_options());
  ASSERT_TRUE(engine);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&engine, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 40; ++i) {
        Started s =
            start(*engine, prompt(1 + random() % 60, random() % 5), tokens(1 + random() % 8));
        if (random() % 3 == 0) engine->abort(s.id);
        if (random() % 2) s->wait();
        (void)engine->stats();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  engine->drain(30);
  EXPECT_EQ(engine->stats().used_pages, 0);
}

TEST(Engine, ConflictingOptionsAreRefusedAtStart) {
  auto expect = [](const std::function<void(Options&)>& change, const char* says) {
    Options options = small_options();
    change(options);
    const auto engine = Engine::create(options);
    ASSERT_FALSE(engine.ok()) << says;
    EXPECT_NE(engine.status().message().find(says), std::string::npos) << engine.status().message();
  };
  expect([](Options& o) { o.device = "cuda"; }, "cuda");
  expect([](Options& o) { o.attention_backend = "fa3"; }, "fa3");
  expect([](Options& o) { o.model = "/nowhere.gguf"; }, "nowhere");
  expect([](Options& o) { o.context_length = 1000000; }, "context-length");
  expect([](Options& o) { o.schedule_policy = "x"; }, "policy");
  expect([](Options& o) { o.max_total_tokens = int64_t{1} << 40; }, "max-total-tokens");
  expect([](Options& o) { o.record_plans = "/nowhere/x"; }, "record-plans");
}

}  // namespace
}  // namespace attune
