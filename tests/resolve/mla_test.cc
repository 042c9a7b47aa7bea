// The constants and paths of the M rows, as far as they are resolved at start.
#include "explain.h"

namespace attune::resolve {
namespace {

using attention::Path;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Paths = std::vector<Path>;
const Paths kAll = {Path::kRagged, Path::kOneShot, Path::kChunked, Path::kAbsorbed};

MlaChoice mla(const Resolution& r) {
  EXPECT_TRUE(r.mla);
  return r.mla.value_or(MlaChoice{});
}

TEST(M1ToM4, PathsAndConstants) {
  struct Row {
    const char* device;
    int32_t absorb_below;
    int64_t capacity;
  };
  for (const Row& row : std::vector<Row>{{"sm90", 160, 131072}, {"cpu", 160, 4096}})
    for (const char* model : {"deepseek-v2-lite", "deepseek-v3"}) {
      const MlaChoice m = mla(explain(row.device, model));
      EXPECT_EQ(m.paths, kAll) << row.device;
      EXPECT_EQ(m.policy.absorb_below, row.absorb_below);
      EXPECT_EQ(m.policy.capacity, row.capacity);
      EXPECT_TRUE(m.policy.chunked_prefix);
    }
}

// Rows behind a backend that absorbs would all be the oracle's work.
TEST(M1, WithoutABackendForRowsEveryPromptIsAbsorbed) {
  for (const char* device : {"sm80", "sm100"}) {
    const Resolution r = explain(device, "deepseek-v2-lite");
    EXPECT_EQ(mla(r).paths, (Paths{Path::kAbsorbed})) << device;
    EXPECT_TRUE(mla(r).policy.one_path);
    EXPECT_TRUE(has_rule(r, "M1"));
  }
  // Asked for by name it serves them.
  EXPECT_EQ(mla(explain("sm80", "deepseek-v2-lite", "--attention-backend reference")).paths, kAll);
}

TEST(M1ToM4, FlagsSetThem) {
  const MlaChoice m =
      mla(explain("cpu", "deepseek-v2-lite", "--chunked-prefix-capacity 100 --mla-absorb-below 0"));
  EXPECT_EQ(m.policy.capacity, 100);
  EXPECT_EQ(m.policy.absorb_below, 0);
  const MlaChoice off = mla(explain("cpu", "deepseek-v2-lite", "--disable-chunked-prefix-cache"));
  EXPECT_FALSE(off.policy.chunked_prefix);
  EXPECT_EQ(off.paths, (Paths{Path::kRagged, Path::kAbsorbed}));
}

// What is told is what happens.
TEST(M1ToM4, ReasonsDoNotContradictOneAnother) {
  const auto rules = [](const char* flags, const char* device = "cpu") {
    std::vector<std::string> told;
    for (const Reason& reason : explain(device, "deepseek-v2-lite", flags).reasons)
      if (reason.rule[0] == 'M' || reason.rule == "S12") told.push_back(reason.rule);
    return told;
  };
  EXPECT_EQ(rules(""), (Names{"M1", "M4", "M2"}));
  EXPECT_EQ(rules("--disable-chunked-prefix-cache"), (Names{"M1", "M4"}));
  EXPECT_EQ(rules("--enable-deterministic-inference"), (Names{"S12"}));
  EXPECT_EQ(rules("--enable-deterministic-inference --disable-chunked-prefix-cache"),
            (Names{"S12"}));
  // Nothing is absorbed below a bound, as nobody absorbs.
  EXPECT_EQ(rules("--prefill-attention-backend trtllm_mla --no-attention-fallback", "sm90"),
            (Names{"M1", "M2", "M4"}));
}

// Bounds between paths are told where there are several.
TEST(M1ToM4, OnePathIsToldWithoutBounds) {
  for (const Resolution& r :
       {explain("cpu", "deepseek-v2-lite", "--enable-deterministic-inference"),
        explain("sm80", "deepseek-v2-lite")}) {
    EXPECT_THAT(to_table(r), AllOf(HasSubstr("MLA           absorbed\n"),
                                   Not(HasSubstr("absorbed below")), Not(HasSubstr("at once"))));
    EXPECT_THAT(to_json(r), HasSubstr("\"mla\":{\"paths\":[\"absorbed\"]}"));
  }
  const Resolution off = explain("cpu", "deepseek-v2-lite", "--disable-chunked-prefix-cache");
  EXPECT_THAT(to_table(off), HasSubstr("ragged, absorbed; chunked prefix off\n"));
}

TEST(M1ToM4, AnMhaModelHasNone) {
  const Resolution r = explain("sm90", "llama3-8b", "--mla-absorb-below 7");
  EXPECT_FALSE(r.mla);
  EXPECT_TRUE(has_rule(r, "mla"));  // told, not ignored
  EXPECT_FALSE(has_rule(explain("sm90", "llama3-8b"), "mla"));
}

TEST(M5, ChunksOffAndNoAbsorbedExtendGoesToTheFallback) {
  const Resolution r = explain("sm90", "deepseek-v3", "--disable-chunked-prefix-cache");
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(head(r, Phase::kPrefill), "trtllm_mla");
  EXPECT_EQ(mla(r).paths, (Paths{Path::kRagged, Path::kAbsorbed}));
  EXPECT_THAT(to_json(r),
              HasSubstr("trtllm_mla has no absorbed extend: flashinfer_mla serves those prompts"));
  // M8: decode and its followers are not affected.
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"flashinfer_mla", "reference"}));
}

TEST(M5, NobodyAbsorbs) {
  const std::string alone = "--prefill-attention-backend trtllm_mla --no-attention-fallback ";
  EXPECT_THAT(
      only_conflict(explain("sm90", "deepseek-v3", alone + "--disable-chunked-prefix-cache"), "M5"),
      HasSubstr("drop --no-attention-fallback or --disable-chunked-prefix-cache"));
  const MlaChoice m = mla(explain("sm90", "deepseek-v3", alone));
  EXPECT_EQ(m.paths, (Paths{Path::kRagged, Path::kOneShot, Path::kChunked}));
  EXPECT_EQ(m.policy.absorb_below, 0);
  EXPECT_THAT(only_conflict(explain("sm90", "deepseek-v3", alone + "--mla-absorb-below 100"), "M4"),
              HasSubstr("use --mla-absorb-below 0"));
}

// Chunks are merged by their LSE: who gives none takes none, and the route never asks for them.
TEST(M2, NobodyGivesAnLse) {
  const std::string alone =
      "--prefill-attention-backend trtllm_mla --no-attention-fallback --assume "
      "trtllm_mla:lse-out=off";
  const Resolution r = explain("sm90", "deepseek-v3", alone + ",trtllm_mla:absorbed-extend=on");
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_FALSE(mla(r).policy.chunked_prefix);
  EXPECT_EQ(mla(r).paths, (Paths{Path::kRagged, Path::kAbsorbed}));
  EXPECT_TRUE(has_rule(r, "M2"));
  EXPECT_THAT(only_conflict(explain("sm90", "deepseek-v3", alone), "M5"),
              AllOf(HasSubstr("no prefill candidate merges chunks"),
                    HasSubstr("drop --no-attention-fallback")));
  // The oracle at the end of the list would, but is none to choose a path for.
  EXPECT_EQ(mla(explain("sm90", "deepseek-v3", "--assume trtllm_mla:lse-out=off")).paths,
            (Paths{Path::kRagged, Path::kAbsorbed}));
}

TEST(M6, ADecodeShapedKernelWouldAbsorbAsTheFirst) {
  const Resolution r =
      explain("sm90", "deepseek-v3",
              "--disable-chunked-prefix-cache --assume trtllm_mla:absorbed-extend=on");
  EXPECT_FALSE(has_rule(r, "M5"));
  EXPECT_EQ(head(r, Phase::kPrefill), "trtllm_mla");
}

TEST(M9, Fp8LatentsGoToWhoReadsThemAsTheyAre) {
  const Resolution r = explain("sm90", "deepseek-v3", "--kv-cache-dtype fp8_e4m3");
  EXPECT_EQ(names(r, Phase::kDecode), Names{"reference"});
  EXPECT_THAT(why_refused(r, "flashinfer_mla", Phase::kDecode), HasSubstr("not fp8_e4m3"));
}

}  // namespace
}  // namespace attune::resolve
