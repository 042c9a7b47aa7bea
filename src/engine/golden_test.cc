// The real model on the CPU; see golden.h.
#include "engine/golden.h"

namespace attune {
namespace {

using namespace engine::testing;  // NOLINT: the names of this file's subject

TEST(Golden, Float32GivesEveryId) {
  Options options = test_options();
  options.dtype = "float32";
  auto engine = make_engine(options);
  ASSERT_TRUE(engine);
  expect_golden(*engine, 0);
  expect_free_run(*engine, 0);
}

TEST(Golden, Float32FirstStepLogits) {
  Options options = test_options();
  options.dtype = "float32";
  auto engine = make_engine(options);
  ASSERT_TRUE(engine);
  for (const Golden& g : goldens()) {
    SCOPED_TRACE(g.name);
    auto sink =
        start(*engine, g.prompt,
              {.temperature = 0, .max_new_tokens = 1, .ignore_eos = true, .top_logprobs = 8});
    sink->wait();
    ASSERT_EQ(sink->logprobs.size(), 1u);
    const auto& top = sink->logprobs[0].top;
    ASSERT_EQ(top.size(), g.top8.size());
    // The engine speaks in log-probabilities: logits but for one constant.
    const double shift = g.top8[0].second - top[0].logprob;
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token, g.top8[i].first);
      EXPECT_NEAR(top[i].logprob + shift, g.top8[i].second, 1e-3);
    }
  }
}

TEST(Golden, DefaultDtypeAboveTheFloor) {
  auto engine = make_engine(test_options());
  ASSERT_TRUE(engine);
  expect_golden(*engine, 0.25);
  expect_free_run(*engine, 0.25);
}

TEST(Golden, ReferenceAttentionAgrees) {
  Options options = test_options();
  options.dtype = "float32";
  options.attention_backend = "reference";
  auto engine = make_engine(options);
  ASSERT_TRUE(engine);
  expect_golden(*engine, 0, 100);  // it is slow by design: the long prompt is left out
}

// Chunk size, page size, prefix hits, batch mates and a pool so small that requests are retracted.
TEST(Golden, NothingAboutServingChangesTheArgmax) {
  struct Case {
    const char* name;
    int32_t chunk, page;
    int64_t tokens;
    bool radix;
  };
  for (const Case& c :
       {Case{"chunks of 7", 7, 16, 8192, true}, Case{"page 1", 64, 1, 8192, true},
        Case{"page 64, no cache", 100, 64, 8192, false}, Case{"tight pool", 64, 16, 1024, true}}) {
    SCOPED_TRACE(c.name);
    Options options = test_options();
    options.dtype = "float32";
    options.chunked_prefill_size = c.chunk;
    options.page_size = c.page;
    options.max_total_tokens = c.tokens;
    options.disable_radix_cache = !c.radix;
    auto engine = make_engine(options);
    ASSERT_TRUE(engine);
    expect_golden(*engine, 0.25);
    expect_golden(*engine, 0.25);  // again, on cached prefixes
    expect_free_run(*engine, 0.25);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.running_requests, 0);
    EXPECT_EQ(stats.used_pages, 0);
    if (c.radix) {
      EXPECT_GT(stats.cached_tokens, 0u);
    }
    EXPECT_TRUE(engine->flush_cache().ok());
  }
}

// To the bit: the log-probability of every forced id, whatever the chunks, pages, mates and hits.
TEST(Golden, DeterministicInferenceChangesNoBit) {
  auto run = [](int32_t chunk, int32_t page, int32_t threads, bool mates) {
    Options options = test_options();
    options.enable_deterministic_inference = true;
    options.chunked_prefill_size = chunk;
    options.page_size = page;
    options.threads = threads;
    auto engine = make_engine(options);
    std::vector<float> bits;
    if (!engine) return bits;
    std::vector<Started> others;
    if (mates)
      for (const Golden& g : goldens())
        others.push_back(
            start(*engine, g.prompt, {.seed = 1, .max_new_tokens = 40, .ignore_eos = true}));
    for (int round = 0; round < 2; ++round) {  // the second on cached prefixes
      for (const Golden& g : goldens()) {
        auto sink =
            start(*engine, g.prompt,
                  {.temperature = 0, .max_new_tokens = 16, .ignore_eos = true, .top_logprobs = 0});
        sink->wait();
        for (const LogprobEntry& e : sink->logprobs) bits.push_back(e.chosen.logprob);
      }
    }
    for (auto& other : others) other->wait();
    return bits;
  };
  const std::vector<float> base = run(256, 16, 2, false);
  EXPECT_EQ(base.size(), 2u * 5 * 16);
  EXPECT_EQ(run(33, 16, 2, true), base);
  EXPECT_EQ(run(256, 1, 1, false), base);
  EXPECT_EQ(run(50, 64, 2, true), base);
}

}  // namespace
}  // namespace attune
