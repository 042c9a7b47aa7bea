// S1 to S8, S11: who serves what, in which order. Each test is named by its row of
// docs/selection-rules.md.
#include "explain.h"

namespace attune::resolve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Order {
  const char *device, *model, *flags;
  Names prefill, decode;
  const char* rule;
};

void check_orders(const std::vector<Order>& rows) {
  for (const Order& row : rows) {
    SCOPED_TRACE(testing::Message() << row.device << " " << row.model << " " << row.flags);
    const Resolution r = explain(row.device, row.model, row.flags);
    EXPECT_TRUE(r.conflicts.empty());
    EXPECT_EQ(names(r, Phase::kPrefill), row.prefill);
    EXPECT_EQ(names(r, Phase::kDecode), row.decode);
    EXPECT_TRUE(has_rule(r, row.rule));
  }
}

const Names kHopper = {"fa3", "flashinfer", "cudnn", "reference"};
const Names kOther = {"flashinfer", "cudnn", "reference"};

TEST(S1, APhasesFlagWinsAndTheOtherInherits) {
  const std::string all = "--attention-backend flashinfer";
  check_orders({
      {"sm90",
       "llama3-8b",
       "--attention-backend flashinfer",
       {"flashinfer", "fa3", "cudnn", "reference"},
       {"flashinfer", "fa3", "cudnn", "reference"},
       "S1"},
      {"sm90",
       "llama3-8b",
       "--attention-backend flashinfer --decode-attention-backend cudnn",
       {"flashinfer", "fa3", "cudnn", "reference"},
       {"cudnn", "fa3", "flashinfer", "reference"},
       "S1"},
      {"sm90",
       "llama3-8b",
       "--attention-backend flashinfer --prefill-attention-backend cudnn",
       {"cudnn", "fa3", "flashinfer", "reference"},
       {"flashinfer", "fa3", "cudnn", "reference"},
       "S1"},
      {"sm90",
       "llama3-8b",
       "--decode-attention-backend flashinfer",
       kHopper,
       {"flashinfer", "fa3", "cudnn", "reference"},
       "S1"},
      {"cpu",
       "smollm2",
       "--attention-backend cpu --decode-attention-backend reference",
       {"cpu", "reference"},
       {"reference", "cpu"},
       "S1"},
  });
}

TEST(S2, OneBackendHoweverWrittenIsNoHybrid) {
  const Resolution plain = explain("sm90", "llama3-8b", "--attention-backend flashinfer");
  for (const char* flags :
       {"--prefill-attention-backend flashinfer --decode-attention-backend flashinfer",
        "--attention-backend flashinfer --decode-attention-backend flashinfer",
        "--attention-backend fa3 --prefill-attention-backend flashinfer --decode-attention-backend "
        "flashinfer"}) {
    const Resolution r = explain("sm90", "llama3-8b", flags);
    EXPECT_FALSE(r.hybrid) << flags;
    EXPECT_TRUE(has_rule(r, "S2"));
    EXPECT_EQ(r.order(), plain.order()) << flags;
  }
  // By alias, too.
  EXPECT_FALSE(
      explain("sm90", "deepseek-v3",
              "--prefill-attention-backend flashinfer --decode-attention-backend flashinfer_mla")
          .hybrid);
}

TEST(S8, AnAliasIsToldAsItWasTyped) {
  const Resolution r = explain("cpu", "deepseek-v3", "--attention-backend flashinfer");
  ASSERT_FALSE(r.conflicts.empty());
  EXPECT_THAT(r.conflicts[0].text, HasSubstr("--attention-backend flashinfer: flashinfer_mla"));
}

TEST(S3, TwoBackendsAreAHybridAndVerifyFollowsTheMode) {
  const std::string two = "--prefill-attention-backend fa3 --decode-attention-backend flashinfer";
  const Resolution by_prefill = explain("sm90", "llama3-8b", two);
  EXPECT_TRUE(by_prefill.hybrid);
  EXPECT_TRUE(has_rule(by_prefill, "S3"));
  EXPECT_EQ(head(by_prefill, Phase::kVerify), "fa3");
  EXPECT_EQ(head(by_prefill, Phase::kDraftExtend), "fa3");
  const Resolution by_decode =
      explain("sm90", "llama3-8b", two + " --speculative-attention-mode decode");
  EXPECT_EQ(head(by_decode, Phase::kVerify), "flashinfer");
  EXPECT_EQ(head(by_decode, Phase::kDraftExtend), "flashinfer");
}

TEST(S3, VerifyFollowsWhateverHeadsItsPhase) {
  const Resolution r =
      resolve(with_flashmla(inputs("sm90", "deepseek-v3", "--speculative-attention-mode decode")));
  EXPECT_EQ(names(r, Phase::kVerify), (Names{"flashmla", "flashinfer_mla", "reference"}));
  EXPECT_EQ(names(r, Phase::kDraftExtend), (Names{"flashinfer_mla", "reference"}));
  EXPECT_THAT(why_refused(r, "flashmla", Phase::kDraftExtend), HasSubstr("draft_extend"));
}

TEST(S4, HopperMha) {
  check_orders({{"sm90", "llama3-8b", "", kHopper, kHopper, "S4"},
                {"sm90", "smollm2", "", kHopper, kHopper, "S4"},
                {"sm90", "llama3-8b", "--without fa3", kOther, kOther, "S4"},
                {"sm90",
                 "llama3-8b",
                 "--without fa3,flashinfer",
                 {"cudnn", "reference"},
                 {"cudnn", "reference"},
                 "S4"},
                {"sm90",
                 "llama3-8b",
                 "--without fa3,flashinfer,cudnn",
                 {"reference"},
                 {"reference"},
                 "S4"}});
}

TEST(S5, OtherGpusMha) {
  for (const char* device : {"sm80", "sm89", "sm100"}) {
    check_orders({{device, "llama3-8b", "", kOther, kOther, "S5"}});
    const Resolution r = explain(device, "llama3-8b");
    for (Phase phase : kAllPhases)
      EXPECT_EQ(why_refused(r, "fa3", phase), std::string("needs sm90, this device is ") + device);
  }
}

TEST(S6, Mla) {
  const Names prefill = {"trtllm_mla", "flashinfer_mla", "reference"};
  const Names other = {"flashinfer_mla", "reference"};
  check_orders({{"sm90", "deepseek-v3", "", prefill, other, "S6"},
                {"sm90", "deepseek-v2-lite", "", prefill, other, "S6"},
                {"sm80", "deepseek-v3", "", other, other, "S6"},
                {"sm89", "deepseek-v3", "", other, other, "S6"},
                {"sm100", "deepseek-v2-lite", "", other, other, "S6"},
                // In an MLA model the name flashinfer means flashinfer_mla.
                {"sm90",
                 "deepseek-v3",
                 "--attention-backend flashinfer",
                 {"flashinfer_mla", "trtllm_mla", "reference"},
                 {"flashinfer_mla", "reference"},
                 "alias"},
                {"sm90",
                 "deepseek-v3",
                 "--without flashinfer",
                 {"trtllm_mla", "reference"},
                 {"reference"},
                 "S6"}});
}

TEST(S6, FlashmlaIsFirstOnceItHasItsKernel) {
  EXPECT_EQ(names(resolve(with_flashmla(inputs("sm90", "deepseek-v3", ""))), Phase::kDecode),
            (Names{"flashmla", "flashinfer_mla", "reference"}));
  // Until then no build has it, a simulated one neither.
  const Resolution r = explain("sm90", "deepseek-v3");
  EXPECT_EQ(why_refused(r, "flashmla", Phase::kDecode), "has no kernel yet");
  EXPECT_EQ(r.of(Phase::kDecode)[0].reason, "S6: preferred");
  EXPECT_EQ(r.of(Phase::kDecode)[1].reason, "fallback");
}

TEST(S7, Cpu) {
  const Names order = {"cpu", "reference"};
  check_orders({{"cpu", "smollm2", "", order, order, "S7"},
                {"cpu", "qwen3-30b-a3b", "", order, order, "S7"},
                {"cpu", "deepseek-v2-lite", "", order, order, "S7"}});
}

TEST(S8, WhatANamedBackendCannotDoIsToldWithAMend) {
  struct Row {
    const char *device, *model, *flags, *why, *mend;
  };
  for (const Row& row : std::vector<Row>{
           {"sm80", "llama3-8b", "--attention-backend fa3", "fa3 needs sm90, this device is sm80",
            "--attention-backend with one of: flashinfer, cudnn, reference"},
           {"sm90", "llama3-8b", "--attention-backend trtllm_mla",
            "serves MLA alone, this model has MHA", "fa3, flashinfer, cudnn, reference"},
           {"sm90", "deepseek-v3", "--attention-backend fa3",
            "serves MHA alone, this model has MLA", "flashinfer_mla, reference"},
           {"sm90", "deepseek-v3", "--attention-backend trtllm_mla", "does not serve decode",
            "--prefill-attention-backend trtllm_mla"},
           {"sm90", "deepseek-v3", "--decode-attention-backend flashmla", "has no kernel yet",
            "flashinfer_mla, reference"},
           {"sm90", "llama3-8b", "--attention-backend cudnn --kv-cache-dtype float32",
            "has only bfloat16, float16 KV, not float32", "use --kv-cache-dtype bfloat16"},
           {"sm90", "llama3-8b", "--attention-backend cudnn --kv-cache-dtype float16",
            "reads KV of its queries' type, bfloat16, not float16",
            "use --kv-cache-dtype bfloat16"},
           {"sm90", "llama3-8b", "--attention-backend fa3 --dtype float32", "computes in bfloat16",
            "use --dtype bfloat16"},
           {"sm90", "llama3-8b", "--attention-backend fa3 --without fa3", "built without fa3",
            "flashinfer, cudnn, reference"},
           {"cpu", "smollm2", "--attention-backend flashinfer", "this device is a CPU",
            "cpu, reference"},
       }) {
    SCOPED_TRACE(row.flags);
    const std::string told = only_conflict(explain(row.device, row.model, row.flags), "S8");
    EXPECT_THAT(told, AllOf(HasSubstr(row.why), HasSubstr(row.mend)));
  }
  for (const char* flag : {"--attention-backend", "--prefill-attention-backend"}) {
    const Inputs in = with_flashmla(inputs("sm90", "deepseek-v3", std::string(flag) + " flashmla"));
    EXPECT_THAT(only_conflict(resolve(in), "S8"),
                AllOf(HasSubstr("does not serve prefill"),
                      HasSubstr("--decode-attention-backend flashmla")));
  }
}

TEST(S8, UnknownNamesHaveANearMiss) {
  for (const char* flag : {"--attention-backend", "--prefill-attention-backend",
                           "--decode-attention-backend", "--without"}) {
    const Resolution r = explain("sm90", "llama3-8b", std::string(flag) + " flashinfr");
    EXPECT_THAT(only_conflict(r, "S8"),
                AllOf(HasSubstr(flag), HasSubstr("did you mean flashinfer?"), HasSubstr("cudnn")));
    EXPECT_EQ(r.conflicts[0].flags, Names{flag});
    EXPECT_EQ(head(r, Phase::kDecode), "fa3");  // what could be resolved is
  }
}

TEST(S8, HeadsWindowsCapsAndSinks) {
  struct Row {
    void (*change)(ModelTraits&);
    const char* why;
  };
  for (const Row& row :
       std::vector<Row>{{[](ModelTraits& m) {
                           m.head = {96, 96};
                         },
                         "not of 96"},
                        {[](ModelTraits& m) {
                           m.head = {192, 128};
                         },
                         "not of 192/128"},
                        {[](ModelTraits& m) { m.sinks = true; }, "no attention sinks"}}) {
    Inputs in = inputs("sm90", "llama3-8b", "--attention-backend flashinfer");
    row.change(in.model);
    EXPECT_THAT(only_conflict(resolve(in), "S8"), HasSubstr(row.why));
    in.settings.attention_backend.clear();  // unnamed it is left out, with the reason
    const Resolution r = resolve(in);
    EXPECT_TRUE(r.conflicts.empty());
    EXPECT_THAT(why_refused(r, "flashinfer", Phase::kDecode), HasSubstr(row.why));
  }
  Inputs in = inputs("sm90", "llama3-8b", "--attention-backend cudnn");
  in.model.window = true;  // it has them
  EXPECT_TRUE(resolve(in).conflicts.empty());
  in.model.soft_cap = true;
  EXPECT_THAT(only_conflict(resolve(in), "S8"), HasSubstr("no soft cap"));
}

TEST(S8, WhatAnotherBuildWouldServeIsToldWithItsOption) {
  const auto why = [](attention::HeadDims head, const std::string& flags) {
    Inputs in = inputs("sm90", "llama3-8b", flags);
    in.model.head = head;
    for (Descriptor& d : in.backends) {
      if (d.capabilities.name != "flashinfer") continue;
      d.capabilities.head_dims = {{128, 128}};
      d.capabilities.kv_dtypes = {tensor::DType::kBF16};
      d.capabilities.unbuilt = {{{256, 256}}, {tensor::DType::kF16}, "-DKERNELS=all"};
    }
    return why_refused(resolve(in), "flashinfer", Phase::kDecode);
  };
  EXPECT_EQ(why({256, 256}, ""),
            "has kernels for heads of 128, not of 256: a build with -DKERNELS=all serves it");
  EXPECT_EQ(why({96, 96}, ""), "has kernels for heads of 128, not of 96");
  EXPECT_EQ(why({128, 128}, "--kv-cache-dtype float16"),
            "has only bfloat16 KV, not float16: a build with -DKERNELS=all serves it");
  EXPECT_EQ(why({128, 128}, "--kv-cache-dtype float32"), "has only bfloat16 KV, not float32");
}

TEST(S8, OnlyTheNamedPhasesAreRefused) {
  // cudnn serves no verify and no draft extend: they only follow, and the next serves.
  const Resolution r = explain("sm90", "llama3-8b", "--attention-backend cudnn");
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(names(r, Phase::kVerify), (Names{"fa3", "flashinfer", "reference"}));
  EXPECT_THAT(why_refused(r, "cudnn", Phase::kVerify), HasSubstr("does not serve verify"));
}

TEST(S8, NoFallbackEmptiesTheTail) {
  const Resolution r =
      explain("sm90", "llama3-8b", "--attention-backend cudnn --no-attention-fallback");
  EXPECT_EQ(names(r, Phase::kPrefill), Names{"cudnn"});
  EXPECT_EQ(names(r, Phase::kDecode), Names{"cudnn"});
  EXPECT_TRUE(names(r, Phase::kVerify).empty());
  EXPECT_THAT(why_refused(r, "fa3", Phase::kDecode), HasSubstr("--no-attention-fallback"));
  // Nothing named: there is no tail to empty, and that is told.
  const Resolution unnamed = explain("sm90", "llama3-8b", "--no-attention-fallback");
  EXPECT_EQ(names(unnamed, Phase::kDecode), kHopper);
  EXPECT_TRUE(has_rule(unnamed, "S8"));
}

TEST(S8, WhatWasNotBuiltIsListedWithItsReason) {
  Inputs in = real_inputs("sm90", "llama3-8b", "");
  for (Descriptor& d : in.backends)
    if (d.capabilities.name == "flashinfer") d.unavailable = "built without FlashInfer";
  Resolution r = resolve(in);
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"fa3", "cudnn", "reference"}));
  EXPECT_EQ(why_refused(r, "flashinfer", Phase::kDecode), "built without FlashInfer");
  in.settings.attention_backend = "flashinfer";
  EXPECT_THAT(only_conflict(resolve(in), "S8"), HasSubstr("built without FlashInfer"));
}

TEST(S11, ATreeNeedsAMask) {
  const std::string tree = " --speculative-eagle-topk 4";
  for (const char* named : {"--attention-backend cudnn", "--prefill-attention-backend cudnn",
                            "--decode-attention-backend cudnn --speculative-attention-mode decode"})
    EXPECT_THAT(only_conflict(explain("sm90", "llama3-8b", named + tree), "S11"),
                AllOf(HasSubstr("cudnn has no tree mask"), HasSubstr("fa3, flashinfer, reference")))
        << named;
  // The one that verify does not follow may lack it; so may one that nobody named.
  EXPECT_TRUE(
      explain("sm90", "llama3-8b", "--decode-attention-backend cudnn" + tree).conflicts.empty());
  const Resolution r = explain("sm90", "deepseek-v3", tree);
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(names(r, Phase::kVerify), Names{"reference"});
  EXPECT_EQ(why_refused(r, "flashinfer_mla", Phase::kVerify), "has no tree mask");
  EXPECT_TRUE(explain("cpu", "smollm2", "--attention-backend cpu" + tree).conflicts.empty());
}

MeasuredCell cell(int32_t sequences, int32_t tokens, Names order, Phase phase = Phase::kDecode) {
  return {attention::Arch::kSm90,
          attention::AttentionKind::kMha,
          phase,
          32,
          8,
          128,
          tensor::DType::kBF16,
          64,
          sequences,
          tokens,
          std::move(order)};
}

TEST(S4, AMeasuredTableOrdersByBatch) {
  Inputs in = real_inputs("sm90", "llama3-8b", "");
  in.preferences.measured = {cell(1, 8192, {"fa3", "cudnn", "flashinfer"}),
                             cell(64, 4096, {"cudnn", "flashinfer", "fa3"}),
                             cell(256, 1024, {"flashinfer", "cudnn", "fa3"})};
  const Resolution r = resolve(in);
  // Listed: 64 sequences of 4,096 tokens; who was not measured stays behind as fallback.
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"cudnn", "flashinfer", "fa3", "reference"}));
  EXPECT_EQ(names(r, Phase::kPrefill), kHopper);
  EXPECT_EQ(order_for(r, Phase::kDecode, 2, 8000)[0], "fa3");
  EXPECT_EQ(order_for(r, Phase::kDecode, 100, 3000)[0], "cudnn");
  EXPECT_EQ(order_for(r, Phase::kDecode, 300, 700)[0], "flashinfer");
  EXPECT_EQ(order_for(r, Phase::kPrefill, 300, 700), kHopper);
  EXPECT_THAT(to_table(r), AllOf(HasSubstr("256 sequences of 1024 tokens: flashinfer"),
                                 HasSubstr("decode: nothing named, the order that this build "
                                           "measured for 64 sequences of 4096 tokens"),
                                 HasSubstr("prefill: nothing named, the order for MHA on sm90")));
  EXPECT_THAT(to_json(r), HasSubstr("\"measured\":[{\"sequences\":1,"));
}

TEST(S4, TheNearestShapeCountsAndOnlyOfThisDevice) {
  Inputs in = real_inputs("sm90", "llama3-8b", "");
  MeasuredCell near = cell(64, 4096, {"cudnn"}), far = cell(64, 4096, {"flashinfer"});
  near.q_heads = 64;
  far.q_heads = 128;
  in.preferences.measured = {far, near};
  EXPECT_EQ(head(resolve(in), Phase::kDecode), "cudnn");
  in.settings.decode_attention_backend = "flashinfer";  // a name wins over the table
  EXPECT_EQ(head(resolve(in), Phase::kDecode), "flashinfer");
  in.settings.decode_attention_backend.clear();
  for (MeasuredCell& c : in.preferences.measured) c.arch = attention::Arch::kSm100;
  EXPECT_EQ(head(resolve(in), Phase::kDecode), "fa3");
}

// What bench/attention-h200*.jsonl say; tools/measured_table.py made the table of them.
TEST(S4, TheTableOfThisBuildPrefersFa3) {
  const Resolution r = resolve(real_inputs("sm90", "llama3-8b", ""));
  EXPECT_EQ(r.page_size, 64);
  EXPECT_FALSE(r.hybrid);
  for (const char* flags : {"", "--page-size 16", "--page-size 1", "--kv-cache-dtype fp8_e4m3"}) {
    const Resolution other = resolve(real_inputs("sm90", "llama3-8b", flags));
    for (const auto& [sequences, tokens] : {std::pair{1, 1024},
                                            {1, 8192},
                                            {1, 32768},
                                            {8, 4096},
                                            {20, 4096},
                                            {64, 4096},
                                            {256, 1024}})
      EXPECT_EQ(order_for(other, Phase::kDecode, sequences, tokens)[0], "fa3")
          << flags << " " << sequences;
    for (const auto& [sequences, tokens] : {std::pair{16, 1024}, {1, 16384}, {8, 8704}})
      EXPECT_EQ(order_for(other, Phase::kPrefill, sequences, tokens)[0], "fa3")
          << flags << " " << sequences;
  }
}

// Latent prompts are not in that table: of their paths each has a backend of its own.
TEST(S6, TheTableOfThisBuildLeavesLatentPromptsToTheFixedOrder) {
  const Resolution r = resolve(real_inputs("sm90", "deepseek-v3", ""));
  EXPECT_EQ(names(r, Phase::kPrefill)[0], "trtllm_mla");
  EXPECT_EQ(names(r, Phase::kDecode)[0], "flashinfer_mla");
}

TEST(S4, ASimulatedDeviceKeepsTheFixedOrder) {
  Inputs in = inputs("sm90", "llama3-8b", "");
  in.preferences.measured = {cell(64, 4096, {"cudnn"})};
  EXPECT_EQ(names(resolve(in), Phase::kDecode), kHopper);
}

TEST(S4, ACellsHeadThatCannotServeIsLeftOut) {
  Inputs in = real_inputs("sm90", "llama3-8b", "--kv-cache-dtype fp8_e4m3");
  in.preferences.measured = {cell(64, 4096, {"cudnn", "flashinfer", "fa3"})};
  const Resolution r = resolve(in);
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"flashinfer", "fa3", "reference"}));
  EXPECT_EQ(order_for(r, Phase::kDecode, 64, 4096), (Names{"flashinfer", "fa3", "reference"}));
}

}  // namespace
}  // namespace attune::resolve
