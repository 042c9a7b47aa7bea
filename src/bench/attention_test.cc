#include "bench/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "bench/attention_peers.h"
#include "bench/attention_report.h"

namespace attune::bench {
namespace {

using attention::Phase;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const device::DeviceInfo kHopper{.kind = device::Kind::kCuda, .name = "a GPU", .sm = 90};

std::vector<std::string> names(const AttentionConfig& config,
                               const device::DeviceInfo& device = kHopper) {
  std::vector<std::string> out;
  const auto grid = attention_grid(config, device);
  EXPECT_TRUE(grid.ok()) << grid.status().message();
  if (grid.ok())
    for (const AttentionCase& c : *grid) out.push_back(case_name(c));
  return out;
}

std::string refused(const AttentionConfig& config) {
  const auto grid = attention_grid(config, kHopper);
  EXPECT_EQ(grid.status().code(), Code::kInvalidArgument);
  return grid.status().message();
}

TEST(AttentionGrid, HasTheShapesThatPeersArePublishedWith) {
  const auto all = names({.page_sizes = {1, 16, 64}});
  for (const char* page : {"1", "16", "64"}) {
    for (const char* batch :
         {"1x1024", "4x1024", "16x2048", "1x8192", "1x32768", "8x4096", "64x4096", "128x2048",
          "256x1024", "64x1..8192", "17x1024", "20x4096"})
      EXPECT_THAT(all, Contains("decode 32/8 128/128 " + std::string(batch) + " page " + page +
                                " bfloat16"));
    for (const char* shape : {"decode 64/8 128/128 64x4096", "decode 64/4 128/128 64x4096",
                              "decode 32/32 128/128 64x2048", "prefill 32/8 128/128 16x1024",
                              "prefill 32/8 128/128 4x4096", "prefill 32/8 128/128 1x16384",
                              "prefill 32/8 128/128 8x512+8192", "verify 32/8 128/128 16x8+2048",
                              "verify 32/8 128/128 64x8+2048"})
      EXPECT_THAT(all, Contains(shape + std::string(" page ") + page + " bfloat16"));
    for (const char* seqs : {"16", "64"})
      EXPECT_THAT(all, Contains("verify 32/8 128/128 " + std::string(seqs) + "x8+2048 page " +
                                page + " bfloat16 tree"));
    EXPECT_THAT(all,
                Contains("decode 32/8 128/128 64x4096 page " + std::string(page) + " fp8_e4m3"));
  }
  EXPECT_THAT(all, Contains("prefill 16/16 192/128 4x4096 rows bfloat16"));
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size()) << "names twice";
}

TEST(AttentionGrid, TakesWhatIsAskedFor) {
  EXPECT_THAT(names({.cases = {"/8 128/128 64x4096 page 64"}}),
              ElementsAre("decode 32/8 128/128 64x4096 page 64 bfloat16",
                          "decode 32/8 128/128 64x4096 page 64 fp8_e4m3",
                          "decode 64/8 128/128 64x4096 page 64 bfloat16"));
  EXPECT_THAT(names({.cases = {" 1x1024 page 16", "tree"}, .page_sizes = {16}}),
              ElementsAre("decode 32/8 128/128 1x1024 page 16 bfloat16",
                          "verify 32/8 128/128 16x8+2048 page 16 bfloat16 tree",
                          "verify 32/8 128/128 64x8+2048 page 16 bfloat16 tree"));
  EXPECT_THAT(names({.phases = {"verify"}}), Each(HasSubstr("verify ")));
  EXPECT_THAT(names({.mla = false}), Each(AllOf(Not(HasSubstr("576")), Not(HasSubstr("192/128")))));
  EXPECT_THAT(names({.kv_dtypes = {"fp8_e4m3"}}), Each(HasSubstr(" fp8_e4m3")));
  EXPECT_THAT(names({}, {}), Each(EndsWith(" float32")));
}

TEST(AttentionGrid, RefusesNamesThatAreNone) {
  EXPECT_THAT(refused({.phases = {"decod"}}), HasSubstr("did you mean decode?"));
  EXPECT_THAT(refused({.kv_dtypes = {"q4_0"}}), HasSubstr("--kv-dtypes: 'q4_0'"));
  EXPECT_THAT(refused({.page_sizes = {0}}), HasSubstr("--page-sizes: 0"));
  EXPECT_THAT(refused({.cases = {"64x4097"}}), HasSubstr("--cases"));
}

// A name that nobody has would never be found.
TEST(AttentionPeers, AreOfShapesOfTheGrid) {
  const auto grid = attention_grid({.page_sizes = {1, 16, 64}}, kHopper);
  ASSERT_TRUE(grid.ok());
  int own = 0, other = 0;
  for (const AttentionCase& c : *grid) {
    const PeerSpeeds peers = find_peers(c);
    own += peers.fa3 > 0 && !peers.other_page;
    other += peers.other_page;
  }
  EXPECT_EQ(own, 33);  // as many as the table has lines
  // Pages of 1 and 16 of eight shapes that were measured with 64 alone.
  EXPECT_EQ(other, 16);
}

AttentionRow row(const std::string& backend, double us, int32_t page_size = 64) {
  return {.what = {.heads = {32, 8, 128, 128}, .seqs = 64, .kv_len = 4096, .page_size = page_size},
          .backend = backend,
          .seconds = us * 1e-6,
          .read_seconds = 230e-6,
          .kv_bytes = int64_t{1} << 30,
          .flops = 1e9};
}

TEST(AttentionSummary, SetsOursAgainstTheBestOfTheOthers) {
  AttentionRow cannot = row("fa3", 0);
  cannot.refused = "not this page size";
  const auto all = compare(
      {row("cudnn", 247), row("fa3", 240), row("flashinfer", 248), row("cudnn", 100, 16), cannot});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].other, "cudnn");
  EXPECT_NEAR(all[0].other_seconds, 247e-6, 1e-9);
  // FlashAttention-3 had 4288 GB/s where FlashInfer had 4324.
  EXPECT_NEAR(all[0].fa3_seconds, 248e-6 * 4324 / 4288, 1e-9);
  EXPECT_FALSE(all[0].other_page);
  EXPECT_EQ(all[0].contiguous_seconds, 0);
  EXPECT_NEAR(all[0].ahead(), 247.0 / 240, 1e-6);
  EXPECT_THAT(summary(all),
              AllOf(HasSubstr("decode 32/8 128/128 64x4096 page 64 bfloat16"), HasSubstr("1.029"),
                    HasSubstr("4474 GB/s"), HasSubstr("2026-11-29")));
}

TEST(AttentionSummary, CountsFlashAttention3AmongTheOthers) {
  AttentionRow ours = row("fa3", 100), peer = row("flashinfer", 104);
  for (AttentionRow* r : {&ours, &peer}) {
    r->what.kv_len = 8192;
    r->what.ragged = true;
  }
  const auto all = compare({ours, peer});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_NEAR(all[0].ahead(), 1.04 * 3767 / 4387, 1e-6);  // so behind
}

TEST(AttentionSummary, WithoutFlashInferItsFiguresStand) {
  AttentionRow ours = row("trtllm_mla", 1000, 0);
  ours.what.heads = {16, 16, 192, 128};
  ours.what.phase = Phase::kPrefill;
  ours.what.seqs = 4;
  ours.what.q_len = ours.what.kv_len = 4096;
  ours.flops = 574e9;
  const auto all = compare({ours});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_NEAR(all[0].fa3_seconds, 1e-3, 1e-9);
  // Of other sizes of pages by those of 64; of an unknown shape nothing.
  EXPECT_TRUE(compare({row("fa3", 1, 32)})[0].other_page);
  EXPECT_EQ(compare({row("fa3", 1, 32)})[0].ahead(), 0);
  EXPECT_THAT(summary({}), IsEmpty());
}

TEST(AttentionRow, AsJsonTellsHowItWasTimed) {
  AttentionRow r = row("fa3", 250);
  EXPECT_THAT(to_json(r, kHopper), AllOf(HasSubstr(R"("timing":"alone")"),
                                         HasSubstr(R"("arch":"sm90","backend":"fa3","kind":"mha")"),
                                         HasSubstr(R"("us":250.00)")));
  r.timing = Timing::kStep;
  EXPECT_THAT(to_json(r, kHopper), HasSubstr(R"("timing":"step")"));
  r.what.page_size = 0;
  EXPECT_THAT(to_json(r, kHopper), HasSubstr(R"("kind":"mla")"));
}

}  // namespace
}  // namespace attune::bench
