// S9, S10 and the types: page sizes, KV types. Each test is named by its row.
#include "explain.h"

namespace attune::resolve {
namespace {

using tensor::DType;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(S9, ThePageSizeIsWhatTheFirstCandidatesShare) {
  struct Row {
    const char *device, *model, *flags;
    int32_t page;
  };
  for (const Row& row :
       std::vector<Row>{{"sm90", "llama3-8b", "", 64},
                        {"sm80", "llama3-8b", "", 64},
                        {"sm90", "deepseek-v3", "", 64},
                        {"cpu", "smollm2", "", 16},
                        {"cpu", "deepseek-v2-lite", "", 16},
                        {"sm90", "deepseek-v3", "--decode-attention-backend flashinfer_mla", 64},
                        {"sm90", "llama3-8b", "--page-size 16", 16},
                        {"sm90", "llama3-8b", "--page-size 1", 1},
                        {"cpu", "smollm2", "--page-size 64", 64}}) {
    const Resolution r = explain(row.device, row.model, row.flags);
    EXPECT_TRUE(r.conflicts.empty()) << row.flags;
    EXPECT_EQ(r.page_size, row.page) << row.device << " " << row.model << " " << row.flags;
    EXPECT_TRUE(has_rule(r, "S9"));
  }
}

TEST(S9, AUsersPageSizeLeavesOutWhoDoesNotServeIt) {
  const Resolution r = resolve(with_flashmla(inputs("sm90", "deepseek-v3", "--page-size 32")));
  EXPECT_EQ(r.page_size, 32);
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"flashinfer_mla", "reference"}));
  EXPECT_EQ(why_refused(r, "flashmla", Phase::kDecode), "offers page sizes 64, not 32");
  EXPECT_EQ(names(explain("sm90", "deepseek-v3", "--page-size 16"), Phase::kPrefill),
            (Names{"trtllm_mla", "flashinfer_mla", "reference"}));
}

TEST(S9, ANamedBackendsPageSizeIsAnErrorNotASilentChange) {
  const Resolution r = resolve(with_flashmla(
      inputs("sm90", "deepseek-v3", "--decode-attention-backend flashmla --page-size 16")));
  EXPECT_THAT(only_conflict(r, "S9"),
              AllOf(HasSubstr("--page-size 16"), HasSubstr("offers page sizes 64"),
                    HasSubstr("use --page-size 64")));
  EXPECT_EQ(r.conflicts[0].flags, (Names{"--decode-attention-backend", "--page-size"}));
  EXPECT_EQ(r.page_size, 16);
}

TEST(S9, NamedBackendsThatShareNoneAreAConflict) {
  Inputs in = inputs("sm90", "llama3-8b",
                     "--prefill-attention-backend fa3 --decode-attention-backend cudnn");
  for (Descriptor& d : in.backends)
    if (d.capabilities.name == "fa3") d.capabilities.page_sizes = {1, 2};
  EXPECT_THAT(only_conflict(resolve(in), "S9"),
              HasSubstr("fa3 offers 1, 2; cudnn offers 16, 32, 64, 128"));
  // One alone, whose pages no pool can have.
  Inputs alone = inputs("sm90", "llama3-8b", "--decode-attention-backend fa3");
  for (Descriptor& d : alone.backends)
    if (d.capabilities.name == "fa3") d.capabilities.page_sizes = {48};
  EXPECT_THAT(only_conflict(resolve(alone), "S9"),
              HasSubstr("fa3 offers 48, none of which a pool can have"));
  // An unnamed one gives way.
  in.settings.prefill_attention_backend.clear();
  const Resolution r = resolve(in);
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(r.page_size, 64);
  EXPECT_EQ(head(r, Phase::kPrefill), "flashinfer");
}

TEST(S9, APageSizeThatIsNoneIsAConflictEverywhere) {
  for (const char* device : {"cpu", "sm80", "sm90"})
    for (const char* size : {"48", "3", "512", "4096"})
      EXPECT_THAT(
          only_conflict(explain(device, "llama3-8b", std::string("--page-size ") + size), "S9"),
          AllOf(HasSubstr(size), HasSubstr("power of two"), HasSubstr("use --page-size ")));
  EXPECT_THAT(only_conflict(explain("sm90", "llama3-8b", "--page-size 48"), "S9"),
              HasSubstr("use --page-size 32 or 64"));
}

TEST(S10, Fp8E5m2WithABackendThatHasOnlyE4m3NamesBoth) {
  for (const char* named : {"--attention-backend fa3", "--decode-attention-backend fa3",
                            "--prefill-attention-backend fa3"}) {
    const Resolution r =
        explain("sm90", "llama3-8b", std::string(named) + " --kv-cache-dtype fp8_e5m2");
    EXPECT_THAT(only_conflict(r, "S10"),
                AllOf(HasSubstr(named), HasSubstr("fp8_e5m2"), HasSubstr("has only fp8_e4m3"),
                      HasSubstr("use --kv-cache-dtype fp8_e4m3"), HasSubstr("reference")));
    EXPECT_EQ(r.kv_dtype, DType::kF8E5M2);
  }
  // Unnamed: left out with the reason, the next serves what was asked.
  const Resolution r = explain("sm90", "llama3-8b", "--kv-cache-dtype fp8_e5m2");
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"reference"}));
  EXPECT_THAT(to_table(r), HasSubstr("decode: only reference is left"));
  EXPECT_THAT(to_table(explain("sm90", "llama3-8b", "")), Not(HasSubstr("is left")));
  EXPECT_THAT(why_refused(r, "fa3", Phase::kDecode), HasSubstr("has only fp8_e4m3"));
  EXPECT_EQ(names(explain("sm90", "llama3-8b", "--kv-cache-dtype fp8_e4m3"), Phase::kDecode),
            (Names{"fa3", "flashinfer", "reference"}));
}

TEST(Types, FollowTheDeviceUnlessSet) {
  EXPECT_EQ(explain("sm90", "llama3-8b").activation_dtype, DType::kBF16);
  EXPECT_EQ(explain("sm90", "llama3-8b").kv_dtype, DType::kBF16);
  EXPECT_EQ(explain("cpu", "llama3-8b").activation_dtype, DType::kF32);
  const Resolution r = explain("cpu", "llama3-8b", "--kv-cache-dtype bfloat16");
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(r.kv_dtype, DType::kBF16);
  Inputs in = inputs("cpu", "smollm2", "");
  in.device.bf16_products = true;
  EXPECT_EQ(resolve(in).activation_dtype, DType::kF32);  // there, but no gain
  in.device.fast_bf16 = true;
  EXPECT_EQ(resolve(in).activation_dtype, DType::kBF16);
  EXPECT_EQ(resolve(in).kv_dtype, DType::kBF16);
  in.settings.dtype = "float32";
  EXPECT_EQ(resolve(in).kv_dtype, DType::kF32);
}

TEST(Types, WhatADeviceLacksIsAConflict) {
  EXPECT_THAT(only_conflict(explain("cpu", "smollm2", "--dtype bfloat16"), "dtype"),
              HasSubstr("no bfloat16 products"));
  EXPECT_THAT(only_conflict(explain("cpu", "smollm2", "--dtype float16"), "dtype"),
              HasSubstr("use --dtype float32"));
  for (const char* fp8 : {"fp8_e4m3", "fp8_e5m2"})
    EXPECT_THAT(only_conflict(explain("cpu", "smollm2", std::string("--kv-cache-dtype ") + fp8),
                              "kv-dtype"),
                HasSubstr("caches float32, bfloat16, float16"));
}

}  // namespace
}  // namespace attune::resolve
