// H1 to H8. Each test is named by its row.
#include "explain.h"

namespace attune::resolve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kOn = "--enable-hierarchical-cache ";
const std::string kNoFa3 = "--assume fa3:tolerates-host-copies=off ";
const std::string kNoFlashmla = "--assume flashmla:tolerates-host-copies=off ";

HiCacheChoice hicache(const Resolution& r) {
  EXPECT_TRUE(r.hicache);
  return r.hicache.value_or(HiCacheChoice{});
}

TEST(H0, OffUnlessAskedAndItsFlagsAreThenTold) {
  EXPECT_FALSE(explain("sm90", "llama3-8b").hicache);
  const Resolution r = explain("sm90", "llama3-8b", "--hicache-ratio 3");
  EXPECT_FALSE(r.hicache);
  EXPECT_TRUE(has_rule(r, "hicache"));
}

// Of 1e-30 GB/s a copy never ended, and the pace in clocks was no number any more.
TEST(H0, ARateThatCopiesCannotKeepIsRefused) {
  for (const char* rate : {"1e-30", "0.001"})
    EXPECT_THAT(
        only_conflict(explain("sm90", "llama3-8b", kOn + "--hicache-io-rate " + rate), "hicache"),
        AllOf(HasSubstr("--hicache-io-rate"), HasSubstr("at least 0.01")));
  for (const char* rate : {"0", "0.01", "45"})
    EXPECT_TRUE(explain("sm90", "llama3-8b", kOn + "--hicache-io-rate " + rate).conflicts.empty());
}

TEST(Storage, FlagsOfAnotherStorageAreTold) {
  const std::string dir = "--hicache-storage-dir /tmp/x ", url = "--hicache-storage-url redis://x ";
  const auto told = [](const std::string& flags) {
    const Resolution r = explain("sm90", "llama3-8b", kOn + flags);
    EXPECT_TRUE(r.conflicts.empty());
    for (const Reason& reason : r.reasons)
      if (reason.rule == "hicache") return reason.text;
    return std::string();
  };
  EXPECT_EQ(told(dir + url + "--hicache-storage-prefetch-policy wait_complete"),
            "no effect with --hicache-storage-backend none: --hicache-storage-dir, "
            "--hicache-storage-url, --hicache-storage-prefetch-policy");
  const std::string best_effort = "--hicache-storage-prefetch-policy best_effort ";
  EXPECT_EQ(told(best_effort + dir + "--hicache-storage-backend redis"),
            "no effect with --hicache-storage-backend redis and "
            "--hicache-storage-prefetch-policy best_effort: --hicache-storage-dir");
  EXPECT_EQ(told("--hicache-storage-size 3 --hicache-storage-prefetch-threshold 9"),
            "no effect with --hicache-storage-backend none: --hicache-storage-size, "
            "--hicache-storage-prefetch-threshold");
  const std::string timeouts =
      "--hicache-storage-prefetch-timeout 1 --hicache-storage-prefetch-timeout-per-ki-token 1 "
      "--hicache-storage-prefetch-timeout-max 1 --hicache-storage-backend file ";
  EXPECT_EQ(told(best_effort + timeouts),
            "no effect with --hicache-storage-backend file and "
            "--hicache-storage-prefetch-policy best_effort: --hicache-storage-prefetch-timeout, "
            "--hicache-storage-prefetch-timeout-per-ki-token, "
            "--hicache-storage-prefetch-timeout-max");
  EXPECT_EQ(told(timeouts), "");
  EXPECT_EQ(told(dir + "--hicache-storage-backend file"), "");
  EXPECT_EQ(told(url + "--hicache-storage-backend redis"), "");
}

TEST(H1, ThePieceDecidesWhoCopies) {
  struct Row {
    const char *device, *model, *flags;
    int64_t piece;
    const char* io;
  };
  for (const Row& row :
       std::vector<Row>{{"sm90", "llama3-8b", "", 262144, "direct"},
                        {"sm90", "qwen3-32b", "", 262144, "direct"},
                        {"sm90", "llama3-8b", "--page-size 32", 131072, "kernel"},
                        {"sm90", "llama3-8b", "--page-size 128", 524288, "direct"},
                        {"sm90", "llama3-8b", "--kv-cache-dtype fp8_e4m3", 131072, "kernel"},
                        {"sm90", "qwen3-30b-a3b", "", 131072, "kernel"},
                        {"sm90", "smollm2", "", 49152, "kernel"},
                        {"sm90", "deepseek-v3", "", 73728, "kernel"},
                        {"sm80", "deepseek-v2-lite", "", 73728, "kernel"},
                        {"cpu", "llama3-8b", "", 131072, "kernel"},
                        {"sm90", "llama3-8b", "--hicache-io-backend kernel", 262144, "kernel"},
                        {"sm90", "deepseek-v3", "--hicache-io-backend direct", 73728, "direct"}}) {
    const Resolution r = explain(row.device, row.model, kOn + row.flags);
    EXPECT_TRUE(r.conflicts.empty());
    EXPECT_EQ(hicache(r).piece_bytes, row.piece) << row.model << row.flags;
    EXPECT_EQ(hicache(r).io_backend, row.io) << row.model << row.flags;
    EXPECT_TRUE(has_rule(r, "H1"));
  }
}

TEST(H2, DecodeMovesToATolerantBackendAndPrefillStays) {
  const Resolution mha = explain("sm90", "llama3-8b", kOn + kNoFa3 + "--page-size 16");
  EXPECT_TRUE(mha.conflicts.empty());
  EXPECT_TRUE(has_rule(mha, "H2"));
  EXPECT_EQ(hicache(mha).io_backend, "kernel");
  EXPECT_EQ(names(mha, Phase::kDecode), (Names{"flashinfer", "fa3", "cudnn", "reference"}));
  EXPECT_EQ(head(mha, Phase::kPrefill), "fa3");
  EXPECT_TRUE(mha.hybrid);
  EXPECT_EQ(mha.page_size, 16);
  EXPECT_EQ(head(mha, Phase::kVerify), "fa3");
  EXPECT_EQ(head(explain("sm90", "llama3-8b",
                         kOn + kNoFa3 + "--page-size 16 --speculative-attention-mode decode"),
                 Phase::kVerify),
            "flashinfer");

  const Resolution mla = resolve(with_flashmla(inputs("sm90", "deepseek-v3", kOn + kNoFlashmla)));
  EXPECT_EQ(head(mla, Phase::kDecode), "flashinfer_mla");
  EXPECT_EQ(head(mla, Phase::kPrefill), "trtllm_mla");
  // A prefill flag is no decode flag.
  EXPECT_EQ(head(explain("sm90", "llama3-8b",
                         kOn + kNoFa3 + "--page-size 16 --prefill-attention-backend fa3"),
                 Phase::kDecode),
            "flashinfer");
  // The next of the safe order, where the first is not built or does not tolerate them either.
  for (const char* more : {"--without flashinfer", "--assume flashinfer:tolerates-host-copies=off"})
    EXPECT_EQ(
        head(explain("sm90", "llama3-8b", kOn + kNoFa3 + "--page-size 16 " + more), Phase::kDecode),
        "cudnn");
}

TEST(H2, NotWhereNothingNeedsIt) {
  for (const std::string& flags : {kOn + kNoFa3, /* direct: 256 KiB */ kOn + "--page-size 16",
                                   kOn + kNoFa3 + "--page-size 16 --hicache-io-backend direct"}) {
    const Resolution r = explain("sm90", "llama3-8b", flags);
    EXPECT_EQ(head(r, Phase::kDecode), "fa3") << flags;
    EXPECT_FALSE(has_rule(r, "H2"));
    EXPECT_FALSE(r.hybrid);
  }
}

TEST(H2, AlsoWhereTheUserSetKernel) {
  const Resolution r = explain("sm90", "llama3-8b", kOn + kNoFa3 + "--hicache-io-backend kernel");
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(head(r, Phase::kDecode), "flashinfer");
  EXPECT_EQ(hicache(r).io_backend, "kernel");
}

TEST(H2, ATolerantHeadOfEveryCell) {
  Inputs in = real_inputs("sm90", "llama3-8b", kOn + "--page-size 16");
  auto cell = [](int32_t sequences, Names order) {
    return MeasuredCell{attention::Arch::kSm90,
                        attention::AttentionKind::kMha,
                        Phase::kDecode,
                        32,
                        8,
                        128,
                        tensor::DType::kBF16,
                        16,
                        sequences,
                        4096,
                        std::move(order)};
  };
  in.preferences.measured = {cell(1, {"fa3", "flashinfer"}), cell(64, {"flashinfer", "fa3"})};
  for (Descriptor& d : in.backends)
    d.capabilities.tolerates_host_copies = d.capabilities.name != "fa3";
  // The listed order's head tolerates them, another cell's does not: that one counts too.
  const Resolution r = resolve(in);
  EXPECT_TRUE(has_rule(r, "H2"));
  for (int32_t sequences : {1, 64})
    EXPECT_EQ(order_for(r, Phase::kDecode, sequences, 4096),
              (Names{"flashinfer", "fa3", "cudnn", "reference"}));
}

// tests/gpu/hicache_soak_gpu_test.cc is the proof.
TEST(H2, OnARealGpuWhoHasProvedItKeepsDecode) {
  Inputs in = real_inputs("sm90", "llama3-8b", kOn + "--page-size 16");
  in.preferences.measured.clear();
  for (const Descriptor& d : in.backends) {
    const std::string& name = d.capabilities.name;
    const bool proved = name == "fa3" || name == "flashinfer" || name == "flashinfer_mla" ||
                        name == "cudnn" || name == "reference" || name == "cpu";
    EXPECT_EQ(d.capabilities.tolerates_host_copies, proved) << name;
  }
  const Resolution r = resolve(in);
  EXPECT_EQ(head(r, Phase::kDecode), "fa3");
  EXPECT_EQ(hicache(r).io_backend, "kernel");
  EXPECT_FALSE(has_rule(r, "H2"));
}

TEST(H2, ARealGpuToleratesNothingUntilItsBuildHasProvedIt) {
  Inputs in = real_inputs("sm90", "llama3-8b", kOn + "--page-size 16");
  in.preferences.measured.clear();
  for (Descriptor& d : in.backends) d.capabilities.tolerates_host_copies = false;
  const Resolution r = resolve(in);
  EXPECT_EQ(head(r, Phase::kDecode), "fa3");
  EXPECT_EQ(hicache(r).io_backend, "direct");  // H3: none is tolerant
  EXPECT_TRUE(has_rule(r, "H3"));
}

TEST(H2, ACpuToleratesThemAlways) {
  for (const char* model : {"smollm2", "deepseek-v2-lite"}) {
    const Resolution r = resolve(real_inputs("cpu", model, kOn));
    EXPECT_TRUE(r.conflicts.empty());
    EXPECT_EQ(hicache(r).io_backend, "kernel");
    EXPECT_EQ(head(r, Phase::kDecode), "cpu");
    EXPECT_FALSE(has_rule(r, "H2") || has_rule(r, "H3") || has_rule(r, "H5"));
  }
}

// What takes the place of an unproven GPU build where there is no GPU: a tolerance given up.
TEST(H2, OnACpuThatGaveToleranceUp) {
  const std::string off = kOn + "--assume cpu:tolerates-host-copies=off ";
  const auto real = [&](const std::string& flags) {
    return resolve(real_inputs("cpu", "smollm2", off + flags));
  };
  const Resolution moved = real("");
  EXPECT_TRUE(moved.conflicts.empty());
  EXPECT_EQ(head(moved, Phase::kDecode), "reference");
  EXPECT_EQ(head(moved, Phase::kPrefill), "cpu");
  EXPECT_EQ(hicache(moved).io_backend, "kernel");
  EXPECT_EQ(hicache(moved).held_beside, Names{"cpu"});  // H5
  const Resolution named = real("--decode-attention-backend cpu");
  EXPECT_EQ(hicache(named).io_backend, "direct");
  EXPECT_TRUE(has_rule(named, "H3"));
  EXPECT_NE(only_conflict(real("--decode-attention-backend cpu --hicache-io-backend kernel"), "H4"),
            "");
  EXPECT_NE(only_conflict(real("--attention-backend cpu --hicache-mem-layout page_first"), "H4"),
            "");
  // H5 alone: decode's head tolerates them, a fallback does not.
  EXPECT_EQ(hicache(resolve(real_inputs("cpu", "smollm2",
                                        kOn + "--assume reference:tolerates-host-copies=off")))
                .held_beside,
            Names{"reference"});
}

TEST(H3, ANamedDecodeBackendStaysAndIoBecomesDirect) {
  for (const char* named : {"--decode-attention-backend fa3", "--attention-backend fa3"}) {
    const Resolution r = explain("sm90", "llama3-8b", kOn + kNoFa3 + "--page-size 16 " + named);
    EXPECT_TRUE(r.conflicts.empty());
    EXPECT_EQ(head(r, Phase::kDecode), "fa3");
    EXPECT_EQ(hicache(r).io_backend, "direct");
    EXPECT_TRUE(has_rule(r, "H3"));
    EXPECT_THAT(to_json(r), HasSubstr("64 KiB the copy engine moves about 31.8 GB/s"));
  }
}

TEST(H3, NoTolerantBackendThatServes) {
  for (const std::string& flags :
       {kOn + kNoFlashmla + "--without flashinfer", kOn + kNoFlashmla + "--without flashinfer_mla",
        kOn + kNoFlashmla + "--assume flashinfer:tolerates-host-copies=off"}) {
    const Resolution r = resolve(with_flashmla(inputs("sm90", "deepseek-v3", flags)));
    EXPECT_TRUE(r.conflicts.empty()) << flags;
    EXPECT_EQ(head(r, Phase::kDecode), "flashmla");
    EXPECT_EQ(hicache(r).io_backend, "direct");
  }
  // Built, but not for this page size.
  EXPECT_EQ(
      hicache(explain("sm90", "llama3-8b", kOn + kNoFa3 + "--without flashinfer --page-size 8"))
          .io_backend,
      "direct");
}

TEST(H4, WhatTheUserSetIsNotRewritten) {
  const std::string named = "--decode-attention-backend fa3 --page-size 16 ";
  EXPECT_THAT(
      only_conflict(
          explain("sm90", "llama3-8b", kOn + kNoFa3 + named + "--hicache-io-backend kernel"), "H4"),
      AllOf(HasSubstr("--hicache-io-backend kernel"), HasSubstr("fa3"),
            HasSubstr("use --hicache-io-backend direct"),
            HasSubstr("--decode-attention-backend flashinfer")));
  const Resolution layout =
      explain("sm90", "llama3-8b", kOn + kNoFa3 + named + "--hicache-mem-layout page_first");
  EXPECT_THAT(only_conflict(layout, "H4"),
              AllOf(HasSubstr("--hicache-mem-layout page_first, which needs IO kernel"),
                    HasSubstr("use --hicache-mem-layout page_first_direct")));
  EXPECT_EQ(layout.conflicts[0].flags,
            (Names{"--hicache-mem-layout", "--decode-attention-backend"}));
  EXPECT_THAT(
      only_conflict(resolve(with_flashmla(inputs("sm90", "deepseek-v3",
                                                 kOn + kNoFlashmla +
                                                     "--without flashinfer --hicache-io-backend "
                                                     "kernel"))),
                    "H4"),
      AllOf(HasSubstr("no backend of the safe order"),
            // Not of the safe order, but a way out.
            HasSubstr("--decode-attention-backend reference")));
  // Whoever of the safe order serves these pages, and does not tolerate them either.
  EXPECT_THAT(
      only_conflict(
          explain("sm80", "deepseek-v3",
                  kOn + "--assume flashinfer:tolerates-host-copies=off --hicache-io-backend "
                        "kernel --hicache-mem-layout page_first"),
          "H4"),
      AllOf(HasSubstr("no backend of the safe order that does can decode here"),
            HasSubstr("use --hicache-io-backend direct with --hicache-mem-layout "
                      "page_first_direct, or")));
}

TEST(H5, CopiesAreHeldBesideWhoDoesNotTolerateThem) {
  // After H2: prefill keeps fa3, and it is a fallback of decode.
  const Resolution moved = explain("sm90", "llama3-8b", kOn + kNoFa3 + "--page-size 16");
  EXPECT_EQ(hicache(moved).held_beside, Names{"fa3"});
  EXPECT_TRUE(has_rule(moved, "H5"));
  // Because a flag put it there.
  const Resolution named = explain(
      "sm90", "llama3-8b",
      kOn + kNoFa3 +
          "--page-size 16 --prefill-attention-backend fa3 --decode-attention-backend cudnn");
  EXPECT_EQ(hicache(named).held_beside, Names{"fa3"});
  // A fallback.
  EXPECT_EQ(hicache(explain("sm90", "llama3-8b",
                            kOn + "--assume cudnn:tolerates-host-copies=off --page-size 16"))
                .held_beside,
            Names{"cudnn"});
  // Not with the copy engine, nor where all tolerate them.
  EXPECT_FALSE(has_rule(explain("sm90", "llama3-8b", kOn + kNoFa3), "H5"));
  EXPECT_FALSE(has_rule(explain("sm90", "deepseek-v3", kOn), "H5"));
}

TEST(H6, PageFirstNeedsTheKernel) {
  const Resolution both = explain(
      "sm90", "llama3-8b", kOn + "--hicache-mem-layout page_first --hicache-io-backend direct");
  EXPECT_THAT(only_conflict(both, "H6"),
              AllOf(HasSubstr("single tokens"), HasSubstr("page_first_direct")));
  // IO follows the layout, against the piece.
  const Resolution layout = explain("sm90", "llama3-8b", kOn + "--hicache-mem-layout page_first");
  EXPECT_TRUE(layout.conflicts.empty());
  EXPECT_EQ(hicache(layout).io_backend, "kernel");
  EXPECT_TRUE(has_rule(layout, "H6"));
  // The layout follows IO.
  const Resolution io = explain("sm90", "deepseek-v3",
                                kOn + "--hicache-io-backend direct --hicache-storage-backend file");
  EXPECT_EQ(hicache(io).mem_layout, "page_first_direct");
}

TEST(H7, TheLayoutFollowsStorageAndIo) {
  struct Row {
    const char *model, *flags, *layout;
  };
  for (const Row& row : std::vector<Row>{
           {"llama3-8b", "", "layer_first"},
           {"deepseek-v3", "", "layer_first"},
           {"llama3-8b", "--hicache-storage-backend file", "page_first_direct"},
           {"deepseek-v3", "--hicache-storage-backend redis", "page_first"},
           {"deepseek-v3", "--hicache-storage-backend file --hicache-mem-layout layer_first",
            "layer_first"},
           {"llama3-8b", "--hicache-mem-layout page_first_direct", "page_first_direct"}}) {
    const Resolution r = explain("sm90", row.model, kOn + row.flags);
    EXPECT_TRUE(r.conflicts.empty()) << row.flags;
    EXPECT_EQ(hicache(r).mem_layout, row.layout) << row.flags;
    EXPECT_TRUE(has_rule(r, "H7"));
  }
  // IO that H3 made direct counts, not the one that the piece asked for.
  EXPECT_EQ(hicache(explain("sm90", "llama3-8b",
                            kOn + kNoFa3 +
                                "--page-size 16 --attention-backend fa3 "
                                "--hicache-storage-backend file"))
                .mem_layout,
            "page_first_direct");
}

TEST(H8, NeedsKeptPrefixes) {
  for (const char* device : {"cpu", "sm90"})
    EXPECT_THAT(
        only_conflict(explain(device, "llama3-8b", kOn + "--disable-radix-cache"), "H8"),
        AllOf(HasSubstr("--enable-hierarchical-cache"), HasSubstr("--disable-radix-cache")));
}

TEST(H8, OnARealDeviceTheHostPoolMustFitAndBeLarger) {
  auto run = [](const std::string& flags, int64_t pinnable_gib = 100) {
    return resolve(
        real_inputs("sm90", "llama3-8b", kOn + flags, int64_t{30} << 30, pinnable_gib << 30));
  };
  EXPECT_THAT(only_conflict(run("--hicache-ratio 4"), "H8"),
              AllOf(HasSubstr("--hicache-ratio 4"), HasSubstr("120 GiB"), HasSubstr("100 GiB")));
  EXPECT_THAT(only_conflict(run("--hicache-size 200"), "H8"), HasSubstr("can be pinned"));
  EXPECT_THAT(only_conflict(run("--hicache-ratio 1"), "H8"),
              AllOf(HasSubstr("not above the device pool"), HasSubstr("30 GiB")));
  EXPECT_THAT(only_conflict(run("--hicache-size 20"), "H8"),
              HasSubstr("not above the device pool"));
  // Neither set: the largest that fits, 2 at most; if that is no more than the device has, none.
  EXPECT_EQ(hicache(run("")).ratio, 2);
  EXPECT_EQ(hicache(run("", 45)).ratio, 1.5);
  for (const char* flags : {"", "--hicache-ratio 2", "--hicache-size 10"})  // none could be right
    EXPECT_THAT(only_conflict(run(flags, 20), "H8"),
                AllOf(HasSubstr("can pin 20 GiB"), HasSubstr("device pool has 30 GiB"),
                      HasSubstr("--max-total-tokens 81920 leaves room")));
  EXPECT_EQ(hicache(run("--max-total-tokens 81920", 20)).ratio, 2);
  EXPECT_EQ(hicache(run("--hicache-ratio 1.25")).ratio, 1.25);
  // The device pool as it is set counts: 10,000 tokens are 128 KiB * 10,000.
  EXPECT_TRUE(run("--hicache-size 2 --max-total-tokens 10000").conflicts.empty());
}

// There the device pool takes of the same memory.
TEST(H8, OnACpuBothPoolsFit) {
  const auto run = [](const std::string& flags, int64_t pool, int64_t pinnable) {
    return resolve(real_inputs("cpu", "llama3-8b", kOn + flags, pool << 30, pinnable << 30));
  };
  EXPECT_EQ(hicache(run("", 8, 24)).ratio, 2);
  EXPECT_EQ(hicache(run("", 8, 20)).ratio, 1.5);
  EXPECT_THAT(
      only_conflict(run("", 8, 16), "H8"),
      AllOf(HasSubstr("can pin 8 GiB beside the device pool"), HasSubstr("device pool has 8 GiB")));
  EXPECT_THAT(only_conflict(run("--hicache-ratio 2", 8, 20), "H8"),
              HasSubstr("12 GiB that can be pinned beside the device pool"));
}

TEST(Storage, ItsBudget) {
  const auto run = [](const std::string& flags, int64_t disk, int64_t free) {
    Inputs in = real_inputs("cpu", "smollm2", kOn + "--hicache-storage-backend " + flags);
    in.host.storage = disk << 30;
    in.host.storage_free = free << 30;
    return resolve(in);
  };
  EXPECT_EQ(hicache(run("file", 1000, 500)).storage_bytes, int64_t{100} << 30);
  EXPECT_EQ(hicache(run("file", 1000, 50)).storage_bytes, int64_t{25} << 30);
  EXPECT_EQ(hicache(run("file --hicache-storage-size 7.5", 1000, 50)).storage_bytes, 7500000000);
  EXPECT_EQ(hicache(run("redis", 0, 0)).storage_bytes, 0);
  EXPECT_EQ(hicache(run("redis --hicache-storage-size 2", 0, 0)).storage_bytes, 2000000000);
  EXPECT_THAT(only_conflict(run("file --hicache-storage-size 2000", 1000, 50), "storage"),
              AllOf(HasSubstr("has 1000 GiB in all"), HasSubstr("larger disk")));
  EXPECT_EQ(hicache(run("none", 1000, 500)).storage_bytes, 0);
  // Not this machine's disk.
  EXPECT_EQ(
      hicache(explain("sm90", "llama3-8b", kOn + "--hicache-storage-backend file")).storage_bytes,
      0);
}

TEST(H8, ASimulatedDevicesMemoryIsNotChecked) {
  EXPECT_EQ(hicache(explain("sm90", "llama3-8b", kOn)).ratio, 2);
  for (const char* flags : {"--hicache-ratio 900", "--hicache-ratio 0.5", "--hicache-size 900000"})
    EXPECT_TRUE(explain("sm90", "llama3-8b", kOn + flags).conflicts.empty()) << flags;
  EXPECT_EQ(hicache(explain("sm90", "llama3-8b", kOn + "--hicache-ratio 3")).ratio, 3);
  EXPECT_EQ(hicache(explain("sm90", "llama3-8b", kOn + "--hicache-size 64")).host_bytes,
            64000000000);
  EXPECT_THAT(only_conflict(
                  explain("sm90", "llama3-8b", kOn + "--hicache-ratio 3 --hicache-size 64"), "H8"),
              HasSubstr("set one of the two"));
}

}  // namespace
}  // namespace attune::resolve
