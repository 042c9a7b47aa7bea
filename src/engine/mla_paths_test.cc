// One set of prompts with shared prefixes on a small DeepSeek-V3: whichever path its sequences go,
// however prefixes are cut and batches mixed, the tokens are those of the reference backend.
// Rows M1 to M8 and S12 of docs/selection-rules.md.
#include <gtest/gtest.h>

#include "engine/mla_paths_cases.h"

namespace attune {
namespace {

using engine::testing::mla::Answer;
using engine::testing::mla::kNewTokens;
using engine::testing::mla::options_of;
using engine::testing::mla::Outcome;
using engine::testing::mla::prompts;
using engine::testing::mla::run;

void expect_same_answers(const Outcome& got, const Outcome& want) {
  engine::testing::mla::expect_same_answers(got, want, 1e-3f, 1e-3f);
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

// Without chunks nothing is kept for them, however many keys they were to have.
TEST(MlaPaths, WithoutChunksTheyTakeNoRoom) {
  Options options = options_of("deepseek_v3");
  options.disable_chunked_prefix_cache = true;
  options.chunked_prefix_capacity = INT32_MAX;
  expect_same_answers(run(options, true), reference());
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
    for (const Answer& a : got.answers)
      for (const LogprobEntry& row : a.rows) all.push_back(row.chosen.logprob);
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
