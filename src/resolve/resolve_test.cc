// The resolver's rows that a CPU build has, with made-up backends: each test names its row of
// docs/selection-rules.md.
#include "resolve/resolve.h"

#include <gtest/gtest.h>

namespace attune::resolve {
namespace {

using attention::Arch;
using attention::AttentionKind;
using attention::Capabilities;
using attention::Phase;
using tensor::DType;

Capabilities able(const char* name) {
  Capabilities c;
  c.name = name;
  c.archs = {Arch::kCpu};
  c.kinds = {AttentionKind::kMha};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.max_head_dim = 256;
  c.q_dtypes = c.kv_dtypes = {DType::kF32, DType::kBF16};
  c.window = c.soft_cap = c.sinks = c.tree_mask = c.lse_out = c.batch_invariant = true;
  return c;
}

class Resolve : public ::testing::Test {
 protected:
  Resolve() {
    model_ = {.q_heads = 8, .kv_heads = 2, .head = {64, 64}};
    backends_ = {{able("cpu"), ""}, {able("reference"), ""}};
  }
  Resolution run() const { return resolve(model_, device_, options_, backends_); }
  static std::vector<std::string> names(const Resolution& r, Phase phase) {
    return r.candidate_names()[static_cast<size_t>(phase)];
  }
  using Names = std::vector<std::string>;

  ModelTraits model_;
  DeviceTraits device_;
  Options options_;
  std::vector<Descriptor> backends_;
};

TEST_F(Resolve, S7CpuPrefersCpuThenReference) {
  const Resolution r = run();
  for (Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend})
    EXPECT_EQ(names(r, phase), (Names{"cpu", "reference"}));
  EXPECT_FALSE(r.hybrid);
  EXPECT_TRUE(r.conflicts.empty());
}

TEST_F(Resolve, S1PhaseFlagWinsAndTheOtherInherits) {
  options_.attention_backend = "cpu";
  options_.decode_attention_backend = "reference";
  const Resolution r = run();
  EXPECT_EQ(names(r, Phase::kPrefill), (Names{"cpu", "reference"}));
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"reference", "cpu"}));
  EXPECT_TRUE(r.hybrid);  // S3
}

TEST_F(Resolve, S2OneBackendHoweverWrittenIsNoHybrid) {
  options_.prefill_attention_backend = options_.decode_attention_backend = "reference";
  EXPECT_FALSE(run().hybrid);
}

TEST_F(Resolve, NoFallbackEmptiesTheTail) {
  options_.attention_backend = "cpu";
  options_.no_attention_fallback = true;
  EXPECT_EQ(names(run(), Phase::kDecode), (Names{"cpu"}));
}

TEST_F(Resolve, S8NamedBackendThatCannotServeIsAConflictWithAMend) {
  options_.attention_backend = "fa3";
  Resolution r = run();
  ASSERT_FALSE(r.conflicts.empty());
  EXPECT_NE(r.conflicts[0].text.find("fa3"), std::string::npos);
  EXPECT_NE(r.conflicts[0].mend.find("cpu, reference"), std::string::npos);

  options_.attention_backend = "cpu";
  for (auto spoil : {+[](Capabilities& c) { c.max_head_dim = 32; },
                     +[](Capabilities& c) { c.max_gqa_group = 2; },
                     +[](Capabilities& c) { c.kv_dtypes = {DType::kF16}; },
                     +[](Capabilities& c) { c.phases = {Phase::kDecode}; }}) {
    backends_[0] = {able("cpu"), ""};
    spoil(backends_[0].capabilities);
    r = run();
    ASSERT_FALSE(r.conflicts.empty());
    EXPECT_EQ(r.conflicts[0].flags, (Names{"--attention-backend"}));
  }
  backends_[0] = {able("cpu"), "built without it"};
  EXPECT_NE(run().conflicts[0].text.find("built without it"), std::string::npos);
}

TEST_F(Resolve, UnnamedBackendThatCannotServeIsRefusedWithAReason) {
  model_.window = true;
  backends_[0].capabilities.window = false;
  const Resolution r = run();
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"reference"}));
  ASSERT_FALSE(r.refused.empty());
  EXPECT_EQ(r.refused[0].backend, "cpu");
  EXPECT_NE(r.refused[0].why.find("window"), std::string::npos);
}

TEST_F(Resolve, S9PageSizeIsSharedAndAUsersIsNeverChanged) {
  EXPECT_EQ(run().page_size, 16);
  backends_[0].capabilities.page_sizes = {32, 64};
  EXPECT_EQ(run().page_size, 64);
  options_.page_size = 1;
  const Resolution r = run();
  EXPECT_EQ(r.page_size, 1);
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"reference"}));
  options_.attention_backend = "cpu";
  EXPECT_FALSE(run().conflicts.empty());
}

TEST_F(Resolve, S12DeterministicTakesOnlyBatchInvariantBackends) {
  options_.enable_deterministic_inference = true;
  backends_[0].capabilities.batch_invariant = false;
  EXPECT_EQ(names(run(), Phase::kPrefill), (Names{"reference"}));
  options_.decode_attention_backend = "cpu";
  EXPECT_FALSE(run().conflicts.empty());
}

TEST_F(Resolve, DtypeFollowsTheDeviceUnlessSet) {
  EXPECT_EQ(run().activation_dtype, DType::kF32);
  device_.bf16_products = true;
  EXPECT_EQ(run().activation_dtype, DType::kF32);  // present, but no gain
  device_.fast_bf16 = true;
  EXPECT_EQ(run().activation_dtype, DType::kBF16);
  EXPECT_EQ(run().kv_dtype, DType::kBF16);
  options_.dtype = "float32";
  EXPECT_EQ(run().activation_dtype, DType::kF32);
  device_ = {};
  options_.dtype = "bfloat16";
  ASSERT_FALSE(run().conflicts.empty());
  EXPECT_EQ(run().conflicts[0].flags, (Names{"--dtype"}));
}

TEST_F(Resolve, EveryRefusalAndConflictIsPrinted) {
  options_.attention_backend = "nothing";
  const Resolution r = run();
  EXPECT_NE(to_json(r).find("\"conflicts\":[{\"flags\":[\"--attention-backend\"]"),
            std::string::npos);
  EXPECT_NE(to_table(r).find("nothing"), std::string::npos);
}

}  // namespace
}  // namespace attune::resolve
