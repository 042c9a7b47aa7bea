// Prompts with shared prefixes on a small DeepSeek-V2 with heads of the published sizes (192/128
// over latents of 512 and 64): over up-projected rows by our Hopper kernel, absorbed by the next of
// the list, the answers are those of the reference backend on the CPU in float32. Rows M1 to M5 of
// docs/selection-rules.md; skipped where no such GPU is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "engine/mla_paths_cases.h"

namespace attune {
namespace {

using engine::testing::backend_missing;
using engine::testing::cuda_libraries;
using engine::testing::mla::expect_same_answers;
using engine::testing::mla::options_of;
using engine::testing::mla::Outcome;
using engine::testing::mla::run;

constexpr char kModel[] = "deepseek_v2_576";
constexpr float kNear = 0.25;  // bfloat16: family_gpu_test.cc

struct Case {
  const char* name;
  int32_t absorb_below = 1;
  int64_t capacity = 0;
  bool chunked_off = false;
  int32_t chunk = 1024;           // of prefill
  std::vector<std::string> rows;  // paths that trtllm_mla must have served
  bool absorbed = false;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const Outcome& on_the_cpu() {
  static const Outcome made = [] {
    Options options = options_of(kModel);
    options.attention_backend = "reference";
    options.no_attention_fallback = true;
    options.disable_radix_cache = true;
    return run(options, true);
  }();
  return made;
}

class MlaPathsGpu : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    for (const char* name : {"trtllm_mla", "flashinfer_mla"}) {
      const std::string missing = backend_missing(name);
      if (!missing.empty()) GTEST_SKIP() << name << ": " << missing;
    }
  }
};

// Who served which path: rows trtllm_mla alone, the rest the next one, which counts as a fallback.
void expect_routes(const Outcome& got, const Case& c) {
  std::string all;
  for (const auto& [route, batches] : got.routes)
    if (batches > 0) all += route + " ";
  const auto count = [&](const std::string& route) {
    const auto found = got.routes.find(route);
    return found == got.routes.end() ? 0 : found->second;
  };
  for (const char* path : {"ragged", "one_shot", "chunked"}) {
    const bool wanted = std::ranges::find(c.rows, path) != c.rows.end();
    EXPECT_EQ(count(std::string("prefill/trtllm_mla/") + path) > 0, wanted) << path << ": " << all;
    for (const char* other : {"flashinfer_mla", "reference"})
      EXPECT_EQ(count(std::string("prefill/") + other + "/" + path), 0u) << all;
  }
  const std::string absorbed = "prefill/flashinfer_mla/absorbed";
  EXPECT_EQ(count(absorbed) > 0, c.absorbed) << all;
  EXPECT_EQ(got.fallbacks.count(absorbed), c.absorbed ? 1u : 0u);
  EXPECT_GT(count("decode/flashinfer_mla/absorbed"), 0u) << all;  // M8
}

TEST_P(MlaPathsGpu, GivesTheReferencesAnswers) {
  const Case& c = GetParam();
  for (bool together : {false, true}) {
    SCOPED_TRACE(together ? "together" : "one by one");
    Options options = options_of(kModel);
    options.device = "cuda";
    options.dtype = "auto";
    options.cuda_libraries = cuda_libraries();
    options.prefill_attention_backend = "trtllm_mla";
    options.decode_attention_backend = "flashinfer_mla";
    options.mla_absorb_below = c.absorb_below;
    options.chunked_prefix_capacity = c.capacity;
    options.disable_chunked_prefix_cache = c.chunked_off;
    options.chunked_prefill_size = c.chunk;
    const Outcome got = run(options, together);
    const float worst = expect_same_answers(got, on_the_cpu(), kNear, 2 * kNear);
    std::printf("the furthest row by %.3f\n", worst);
    expect_routes(got, c);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Paths, MlaPathsGpu,
    ::testing::Values(
        Case{.name = "OneShot", .capacity = 4096, .rows = {"ragged", "one_shot"}},
        Case{.name = "ChunksOfPrefixes", .capacity = 100, .rows = {"ragged", "chunked"}},
        Case{.name = "ShortChunksAndPrompts",
             .capacity = 37,
             .chunk = 130,
             .rows = {"ragged", "chunked"}},
        Case{.name = "AllFour",
             .absorb_below = 16,
             .capacity = 300,
             .rows = {"ragged", "one_shot", "chunked"},
             .absorbed = true},
        Case{.name = "ChunkedPrefixOff",
             .chunked_off = true,
             .chunk = 50,
             .rows = {"ragged"},
             .absorbed = true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune
