// S12, S13 and the wishes F2 to F10, as far as they are a resolver's. Each test is named by its
// row.
#include "explain.h"

namespace attune::resolve {
namespace {

using attention::Toggle;
using testing::AllOf;
using testing::HasSubstr;

const std::string kDeterministic = "--enable-deterministic-inference";

TEST(S12, OnlyBatchInvariantBackends) {
  struct Row {
    const char *device, *model;
    Names prefill, decode;
  };
  for (const Row& row :
       std::vector<Row>{{"sm90", "llama3-8b", {"fa3", "reference"}, {"fa3", "reference"}},
                        {"sm80", "llama3-8b", {"reference"}, {"reference"}},
                        {"sm90", "deepseek-v3", {"reference"}, {"reference"}},
                        {"cpu", "smollm2", {"cpu", "reference"}, {"cpu", "reference"}}}) {
    const Resolution r = explain(row.device, row.model, kDeterministic);
    EXPECT_TRUE(r.conflicts.empty());
    EXPECT_EQ(names(r, Phase::kPrefill), row.prefill) << row.device;
    EXPECT_EQ(names(r, Phase::kDecode), row.decode) << row.device;
  }
  EXPECT_THAT(why_refused(explain("sm90", "llama3-8b", kDeterministic), "cudnn", Phase::kDecode),
              HasSubstr("not batch-invariant"));
}

TEST(S12, ANamedBackendThatIsNotIsRefusedWithItsReason) {
  const Resolution r = explain("sm90", "llama3-8b", kDeterministic + " --attention-backend cudnn");
  EXPECT_THAT(only_conflict(r, "S12"), AllOf(HasSubstr("cudnn is not batch-invariant"),
                                             HasSubstr("drop " + kDeterministic)));
  EXPECT_EQ(r.conflicts[0].flags, (Names{"--attention-backend", kDeterministic}));
  EXPECT_THAT(only_conflict(explain("sm90", "llama3-8b",
                                    kDeterministic + " --attention-backend fa3 "
                                                     "--assume fa3:batch-invariant=off"),
                            "S12"),
              HasSubstr("fa3 is not batch-invariant"));
}

TEST(S12, SplitsThatMoveAreRefused) {
  for (const char* device : {"cpu", "sm90"}) {
    EXPECT_THAT(
        only_conflict(explain(device, "llama3-8b", kDeterministic + " --num-splits 2"), "S12"),
        AllOf(HasSubstr("--num-splits 2"), HasSubstr("use --num-splits 0 or 1")));
    for (const char* fine : {" --num-splits 0", " --num-splits 1"})
      EXPECT_TRUE(explain(device, "llama3-8b", kDeterministic + fine).conflicts.empty());
  }
}

TEST(S12, OneMlaPath) {
  for (const char* device : {"cpu", "sm80", "sm90", "sm100"}) {
    const Resolution r = explain(device, "deepseek-v3", kDeterministic);
    ASSERT_TRUE(r.mla);
    EXPECT_TRUE(r.mla->policy.one_path);
    EXPECT_EQ(r.mla->paths, std::vector{attention::Path::kAbsorbed}) << device;
  }
  // Who has no absorbed extend cannot serve it.
  EXPECT_EQ(head(explain("sm90", "deepseek-v3", kDeterministic), Phase::kPrefill), "reference");
  EXPECT_THAT(only_conflict(explain("sm90", "deepseek-v3",
                                    kDeterministic + " --prefill-attention-backend trtllm_mla"),
                            "S12"),
              HasSubstr("no absorbed extend"));
}

TEST(S13, ADecodeCandidateMustBeGraphSafe) {
  const std::string unsafe = "--assume fa3:graph-safe=off";
  const Resolution r = explain("sm90", "llama3-8b", unsafe);
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"flashinfer", "cudnn", "reference"}));
  EXPECT_EQ(head(r, Phase::kPrefill), "fa3");
  EXPECT_THAT(why_refused(r, "fa3", Phase::kDecode), HasSubstr("not graph-safe"));
  EXPECT_THAT(only_conflict(
                  explain("sm90", "llama3-8b", unsafe + " --decode-attention-backend fa3"), "S13"),
              AllOf(HasSubstr("fa3 is not graph-safe"), HasSubstr("use --disable-cuda-graph")));
  EXPECT_EQ(head(explain("sm90", "llama3-8b", unsafe + " --disable-cuda-graph"), Phase::kDecode),
            "fa3");
  EXPECT_EQ(head(explain("cpu", "smollm2", "--assume cpu:graph-safe=off"), Phase::kDecode), "cpu");
}

TEST(S13, GraphPolicy) {
  EXPECT_TRUE(explain("sm90", "llama3-8b").graphs.enabled);
  EXPECT_EQ(explain("sm90", "llama3-8b").graphs.max_bs, 256);
  EXPECT_EQ(explain("sm90", "llama3-8b", "--cuda-graph-max-bs 24").graphs.max_bs, 24);
  EXPECT_FALSE(explain("sm90", "llama3-8b", "--disable-cuda-graph").graphs.enabled);
  EXPECT_FALSE(explain("cpu", "llama3-8b").graphs.enabled);
  Inputs small = inputs("sm89", "llama3-8b", "");
  small.device.memory = int64_t{24} << 30;
  EXPECT_EQ(resolve(small).graphs.max_bs, 32);
}

TEST(F2, Packing) {
  EXPECT_EQ(explain("sm90", "llama3-8b").tuning.pack_gqa, Toggle::kAuto);
  EXPECT_EQ(explain("sm90", "llama3-8b", "--pack-gqa on").tuning.pack_gqa, Toggle::kOn);
  EXPECT_EQ(explain("sm90", "llama3-8b", "--pack-gqa off").tuning.pack_gqa, Toggle::kOff);
  EXPECT_THAT(
      only_conflict(explain("sm80", "llama3-8b", "--pack-gqa on --without reference"), "F2"),
      HasSubstr("--pack-gqa on"));
  // Who only stands behind the named one does not count; a hybrid's other half is told.
  EXPECT_THAT(
      only_conflict(explain("sm90", "llama3-8b", "--attention-backend flashinfer --pack-gqa on"),
                    "F2"),
      HasSubstr("not taken by flashinfer"));
  EXPECT_THAT(
      only_conflict(explain("sm90", "llama3-8b", "--attention-backend flashinfer --pack-gqa off"),
                    "F2"),
      HasSubstr("--pack-gqa off: not taken by flashinfer"));
  EXPECT_THAT(
      to_json(explain("sm90", "llama3-8b", "--decode-attention-backend flashinfer --pack-gqa on")),
      HasSubstr("followed by fa3; not taken by flashinfer"));
}

TEST(F3, Splits) {
  EXPECT_EQ(explain("sm90", "llama3-8b").tuning.num_splits, 0);
  EXPECT_EQ(explain("sm90", "llama3-8b", "--num-splits 4").tuning.num_splits, 4);
  EXPECT_THAT(to_json(explain("sm90", "llama3-8b", "--num-splits 1")),
              HasSubstr("--num-splits 1: followed by fa3"));
  for (const char* parts : {"1", "4"})  // FlashInfer cuts by a plan of its own
    EXPECT_THAT(
        only_conflict(explain("sm80", "llama3-8b", std::string("--num-splits ") + parts), "F3"),
        HasSubstr("not taken by flashinfer"));
}

TEST(F4, DependentLaunch) {
  EXPECT_EQ(explain("sm90", "llama3-8b").tuning.pdl, Toggle::kOn);
  EXPECT_EQ(explain("sm90", "llama3-8b", "--enable-pdl off").tuning.pdl, Toggle::kOff);
  EXPECT_EQ(explain("sm80", "llama3-8b").tuning.pdl, Toggle::kOff);
  EXPECT_EQ(explain("cpu", "smollm2").tuning.pdl, Toggle::kOff);
  // It is all kernels': a backend without it does not turn it off.
  for (const char* on : {"", " --enable-pdl on"}) {
    const Resolution r =
        explain("sm90", "llama3-8b", std::string("--attention-backend cudnn") + on);
    EXPECT_TRUE(r.conflicts.empty());
    EXPECT_EQ(r.tuning.pdl, Toggle::kOn);
  }
  for (const char* device : {"cpu", "sm80", "sm89"})
    EXPECT_THAT(only_conflict(explain(device, "llama3-8b", "--enable-pdl on"), "F4"),
                HasSubstr("needs sm90 or later"));
}

// One call for the prefix and the tree, with windows and whatever the page size: nothing has to
// step in for verify.
TEST(F6, ATreeIsVerifiedByTheHopperKernelsWithWindowsAndAnyPageSize) {
  for (const bool window : {false, true})
    for (const char* page : {"1", "8", "16", "32", "64", "128"}) {
      Inputs in = inputs("sm90", "llama3-8b",
                         std::string("--speculative-eagle-topk 4 --page-size ") + page);
      in.model.window = window;
      const Resolution r = resolve(in);
      EXPECT_TRUE(r.conflicts.empty());
      EXPECT_EQ(head(r, Phase::kVerify), "fa3") << page;
      EXPECT_EQ(head(r, Phase::kDecode), "fa3") << page;
      EXPECT_FALSE(r.hybrid);
    }
  Inputs without = inputs("sm90", "llama3-8b",
                          "--speculative-eagle-topk 4 --attention-backend fa3 "
                          "--assume fa3:tree-mask=off");
  EXPECT_THAT(only_conflict(resolve(without), "S11"), HasSubstr("fa3 has no tree mask"));
}

// What a backend can never do is told at the start, before a batch is there; what varies by batch
// is its supports()'s.
TEST(F9, WhatItCanNeverDoIsToldAtTheStart) {
  const auto with = [](const std::string& flags, auto&& change) {
    Inputs in = inputs("sm90", "llama3-8b", "--attention-backend fa3 " + flags);
    change(in.model);
    return only_conflict(resolve(in), "S8");
  };
  const auto none = [](ModelTraits&) {};
  EXPECT_THAT(with("",
                   [](ModelTraits& m) {
                     m.head = {96, 96};
                   }),
              HasSubstr("has kernels for heads of"));
  EXPECT_THAT(with("--kv-cache-dtype float32", none), HasSubstr("KV, not float32"));
  EXPECT_THAT(with("--dtype float32", none), HasSubstr("computes in bfloat16"));
  Inputs mla = inputs("sm90", "deepseek-v3", "--attention-backend fa3");
  EXPECT_THAT(only_conflict(resolve(mla), "S8"), HasSubstr("serves MHA alone"));
}

// A sentence at the start on any other device, not a fault of a kernel.
TEST(F10, OtherDevicesAreToldThatItNeedsSm90) {
  for (const char* device : {"sm80", "sm89", "sm100"}) {
    const std::string needs = std::string("fa3 needs sm90, this device is ") + device;
    for (const char* flag :
         {"--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"}) {
      const Resolution r = explain(device, "llama3-8b", std::string(flag) + " fa3");
      EXPECT_THAT(only_conflict(r, "S8"), AllOf(HasSubstr(needs), HasSubstr("flashinfer"))) << flag;
    }
    // Nobody named it: another serves, and the table says why it does not.
    const Resolution unnamed = explain(device, "llama3-8b");
    EXPECT_TRUE(unnamed.conflicts.empty());
    EXPECT_EQ(head(unnamed, Phase::kDecode), "flashinfer");
    EXPECT_THAT(to_table(unnamed), HasSubstr(std::string("needs sm90, this device is ") + device));
  }
  EXPECT_THAT(only_conflict(explain("cpu", "llama3-8b", "--attention-backend fa3"), "S8"),
              HasSubstr("fa3 needs sm90, this device is a CPU"));
}

}  // namespace
}  // namespace attune::resolve
