// The real model against tests/golden/smollm2.json: ids and logits that `transformers` computed in
// float32 from the same file (tools and rules: tests/golden/README.md). Teacher-forced: at each
// step the engine gets the reference's ids so far and its argmax is compared.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/testing.h"

namespace attune {
namespace {

using engine::testing::ids_of;
using engine::testing::make_engine;
using engine::testing::read_golden;
using engine::testing::start;
using engine::testing::Started;

struct Golden {
  std::string name;
  std::vector<TokenId> prompt, greedy, second;
  std::vector<double> margin;
  std::vector<std::pair<TokenId, double>> top8;  // first step: id, logit
};

const std::vector<Golden>& goldens() {
  static const std::vector<Golden> all = [] {
    const formats::Json json = read_golden("smollm2.json");
    std::vector<Golden> made;
    for (const formats::Json& p : json.find("prompts")->as_array()) {
      Golden g;
      g.name = p.find("name")->as_string();
      g.prompt = ids_of(*p.find("ids"));
      g.greedy = ids_of(*p.find("greedy"));
      g.second = ids_of(*p.find("second"));
      for (const formats::Json& m : p.find("margin")->as_array()) g.margin.push_back(m.as_double());
      for (const formats::Json& t : p.find("first_step_top8")->as_array())
        g.top8.emplace_back(t.as_array()[0].as_int(), t.as_array()[1].as_double());
      made.push_back(std::move(g));
    }
    EXPECT_EQ(made.size(), 5u);
    return made;
  }();
  return all;
}

Options test_options() {
  Options options;
  const char* model = std::getenv("ATTUNE_TEST_MODEL");
  options.model =
      model ? model
            : std::string(ATTUNE_SOURCE_DIR) + "/build/models/smollm2-135m-instruct-q4_1.gguf";
  options.max_total_tokens = 8192;
  return options;
}

// All 32 argmaxes of a prompt in one request: prompt log-probabilities over the forced ids, then
// one token.
std::vector<TokenId> forced_argmaxes(Engine& engine, const Golden& g) {
  std::vector<TokenId> ids = g.prompt;
  ids.insert(ids.end(), g.greedy.begin(), g.greedy.end() - 1);
  auto sink = start(engine, ids,
                    {.temperature = 0,
                     .max_new_tokens = 1,
                     .ignore_eos = true,
                     .top_logprobs = 1,
                     .prompt_logprob_start = static_cast<int32_t>(g.prompt.size())});
  sink->wait();
  std::vector<TokenId> argmaxes;
  EXPECT_EQ(sink->prompt_first, static_cast<int32_t>(g.prompt.size()));
  for (const LogprobEntry& e : sink->prompt_logprobs) argmaxes.push_back(e.top.at(0).token);
  for (TokenId t : sink->tokens) argmaxes.push_back(t);
  return argmaxes;
}

void expect_golden(Engine& engine, double margin_floor, size_t longest = 10000) {
  for (const Golden& g : goldens()) {
    if (g.prompt.size() > longest) continue;
    SCOPED_TRACE(g.name);
    const std::vector<TokenId> got = forced_argmaxes(engine, g);
    ASSERT_EQ(got.size(), g.greedy.size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (g.margin[i] >= margin_floor) {
        EXPECT_EQ(got[i], g.greedy[i]) << "step " << i << ", margin " << g.margin[i];
      }
    }
  }
}

// Step by step through decode; must agree up to the first step below the floor.
void expect_free_run(Engine& engine, double margin_floor) {
  std::vector<Started> sinks;
  for (const Golden& g : goldens())
    sinks.push_back(
        start(engine, g.prompt, {.temperature = 0, .max_new_tokens = 32, .ignore_eos = true}));
  for (size_t k = 0; k < sinks.size(); ++k) {
    const Golden& g = goldens()[k];
    SCOPED_TRACE(g.name);
    sinks[k]->wait();
    ASSERT_EQ(sinks[k]->tokens.size(), 32u);
    for (size_t i = 0; i < 32 && g.margin[i] >= margin_floor; ++i)
      EXPECT_EQ(sinks[k]->tokens[i], g.greedy[i]) << "step " << i;
  }
}

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
