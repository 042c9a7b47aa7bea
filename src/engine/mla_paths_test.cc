// One set of prompts with shared prefixes on a small DeepSeek-V3: whichever path its sequences go,
// however prefixes are cut and batches mixed, the tokens are those of the reference backend.
// Rows M1 to M8 and S12 of docs/selection-rules.md.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/testing.h"

namespace attune {
namespace {

using engine::testing::Collector;
using engine::testing::make_engine;
using engine::testing::start;
using engine::testing::Started;

constexpr int32_t kNewTokens = 12;

// Two documents, each followed by tails of many lengths; page 16, so that prefix hits end within
// chunks, and chunks within pages.
std::vector<std::vector<TokenId>> prompts() {
  std::mt19937 random(3);
  const auto ids = [&](int n) {
    std::vector<TokenId> made(n);
    for (TokenId& id : made) id = static_cast<TokenId>(3 + random() % 93);
    return made;
  };
  std::vector<std::vector<TokenId>> all;
  for (int document : {200, 403}) {
    const std::vector<TokenId> base = ids(document);
    all.push_back(base);
    for (int tail : {1, 5, 17, 64, 130}) {
      all.push_back(base);
      const std::vector<TokenId> more = ids(tail);
      all.back().insert(all.back().end(), more.begin(), more.end());
    }
  }
  return all;
}

Options options_of(const char* model) {
  Options options;
  options.model = std::string(ATTUNE_SOURCE_DIR) + "/tests/golden/families/" + model;
  options.dtype = "float32";
  options.max_total_tokens = 16384;
  options.chunked_prefill_size = 1024;
  return options;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;  // of the tokens
  std::vector<float> margins;   // to the second likeliest
};

struct Outcome {
  std::vector<Answer> answers;
  std::map<std::string, uint64_t> routes;  // "prefill/cpu/ragged"
};

// The documents first, so that the others find them in the cache; then the rest, at once or one
// after another.
Outcome run(const Options& options, bool together) {
  Outcome out;
  auto engine = make_engine(options);
  if (!engine) return out;
  std::vector<Started> started;
  for (const std::vector<TokenId>& prompt : prompts()) {
    started.push_back(start(
        *engine, prompt,
        {.temperature = 0, .max_new_tokens = kNewTokens, .ignore_eos = true, .top_logprobs = 2}));
    if (!together || started.size() % 6 == 1) started.back()->wait();
  }
  for (Started& s : started) {
    s->wait();
    EXPECT_EQ(s->error, "");
    Answer answer{s->tokens, {}, {}};
    for (const LogprobEntry& e : s->logprobs) {
      answer.logprobs.push_back(e.chosen.logprob);
      answer.margins.push_back(e.top[0].logprob - e.top[1].logprob);
    }
    out.answers.push_back(std::move(answer));
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.running_requests, 0);
  for (const EngineStats::AttentionRoute& r : stats.attention_routes)
    out.routes[r.phase + "/" + r.backend + "/" + r.path] += r.batches;
  return out;
}

// The same tokens as long as the choice is no toss-up, and their log-probabilities.
void expect_same_answers(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.answers.size(), want.answers.size());
  for (size_t i = 0; i < want.answers.size(); ++i) {
    const Answer &g = got.answers[i], &w = want.answers[i];
    ASSERT_EQ(g.tokens.size(), static_cast<size_t>(kNewTokens)) << "prompt " << i;
    for (int32_t t = 0; t < kNewTokens; ++t) {
      if (g.tokens[t] != w.tokens[t]) {
        EXPECT_LT(w.margins[t], 1e-3) << "prompt " << i << ", token " << t;
        break;
      }
      EXPECT_NEAR(g.logprobs[t], w.logprobs[t], 1e-3) << "prompt " << i << ", token " << t;
    }
  }
}

const Outcome& reference() {
  static const Outcome made = [] {
    Options options = options_of("deepseek_v3");
    options.attention_backend = "reference";
    options.no_attention_fallback = true;
    options.disable_radix_cache = true;
    return run(options, false);
  }();
  return made;
}

TEST(MlaPaths, EveryPathAndEveryMixGivesTheReferencesTokens) {
  EXPECT_GT(reference().routes.at("prefill/reference/ragged"), 0u);
  struct Case {
    const char* name;
    const char* backend;
    int32_t absorb_below;
    int64_t capacity;
    bool chunked_off;
    int32_t chunk;  // of prefill
    int32_t page;
    std::vector<const char*> paths;  // that must have been gone
  };
  const Case cases[] = {
      {"as chosen", "", -1, 0, false, 1024, 0, {"ragged", "absorbed"}},
      {"all up-projected, small chunks", "", 1, 37, false, 1024, 16, {"ragged", "chunked"}},
      {"chunks of one page", "", 1, 16, false, 100, 16, {"ragged", "chunked"}},
      {"chunks that end inside pages", "", 1, 100, false, 64, 64, {"ragged", "chunked"}},
      {"all in one shot", "", 1, 4096, false, 1024, 1, {"ragged", "one_shot"}},
      {"all four at once",
       "",
       16,
       300,
       false,
       1024,
       16,
       {"ragged", "one_shot", "chunked", "absorbed"}},
      {"chunked prefix off (M5, bug report 12361)",
       "",
       1,
       37,
       true,
       50,
       16,
       {"ragged", "absorbed"}},
      {"the reference on every path",
       "reference",
       16,
       300,
       false,
       1024,
       16,
       {"ragged", "one_shot", "chunked", "absorbed"}},
  };
  for (const Case& c : cases) {
    for (bool together : {false, true}) {
      SCOPED_TRACE(std::string(c.name) + (together ? ", together" : ", one by one"));
      Options options = options_of("deepseek_v3");
      options.attention_backend = c.backend;
      options.mla_absorb_below = c.absorb_below;
      options.chunked_prefix_capacity = c.capacity;
      options.disable_chunked_prefix_cache = c.chunked_off;
      options.chunked_prefill_size = c.chunk;
      options.page_size = c.page;
      const Outcome got = run(options, together);
      expect_same_answers(got, reference());
      const std::string backend = *c.backend ? c.backend : "cpu";
      for (const char* path : c.paths)
        EXPECT_TRUE(got.routes.count("prefill/" + backend + "/" + path)) << path;
      EXPECT_TRUE(got.routes.count("decode/" + backend + "/absorbed"));  // M8
      if (c.chunked_off) {
        EXPECT_FALSE(got.routes.count("prefill/" + backend + "/chunked"));
      }
    }
  }
}

// Prefill on one backend and decode on the other: outputs right, and each counted.
TEST(MlaPaths, AHybridOfTwoBackendsRunsBoth) {
  for (const auto& [prefill, decode] : {std::pair{"cpu", "reference"}, {"reference", "cpu"}}) {
    Options options = options_of("deepseek_v3");
    options.prefill_attention_backend = prefill;
    options.decode_attention_backend = decode;
    options.mla_absorb_below = 16;
    const Outcome got = run(options, true);
    expect_same_answers(got, reference());
    EXPECT_GT(got.routes.at(std::string("prefill/") + prefill + "/ragged"), 0u);
    EXPECT_GT(got.routes.at(std::string("decode/") + decode + "/absorbed"), 0u);
    EXPECT_FALSE(got.routes.count(std::string("decode/") + prefill + "/absorbed") &&
                 got.routes.at(std::string("decode/") + prefill + "/absorbed"));
  }
}

// S12: one path serves every sequence, and no bit depends on mates, chunks, pages or prefix hits.
TEST(MlaPaths, DeterministicInferenceChangesNoBit) {
  const auto bits = [](int32_t chunk, int32_t page, int64_t capacity, bool radix, bool together) {
    Options options = options_of("deepseek_v3");
    options.enable_deterministic_inference = true;
    options.chunked_prefill_size = chunk;
    options.page_size = page;
    options.chunked_prefix_capacity = capacity;
    options.disable_radix_cache = !radix;
    const Outcome got = run(options, together);
    for (const auto& [route, batches] : got.routes)
      EXPECT_TRUE(batches == 0 || route.ends_with("/absorbed")) << route;
    std::vector<float> all;
    for (const Answer& a : got.answers) all.insert(all.end(), a.logprobs.begin(), a.logprobs.end());
    return all;
  };
  const std::vector<float> base = bits(1024, 16, 0, false, false);
  ASSERT_EQ(base.size(), prompts().size() * kNewTokens);
  EXPECT_EQ(bits(1024, 16, 0, true, true), base);
  EXPECT_EQ(bits(33, 1, 37, true, true), base);
  EXPECT_EQ(bits(100, 64, 0, true, false), base);
}

}  // namespace
}  // namespace attune
