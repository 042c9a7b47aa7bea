#include "bench/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/json.h"

namespace attune::bench {
namespace {

using device::Activity;
using device::Trace;
using ::testing::DoubleNear;

constexpr const char* kNorm =
    "void attune::ops::cuda::(anonymous namespace)::norm_row<2, __nv_bfloat16>(RmsNormParams)";
constexpr const char* kGemv =
    "void attune::ops::cuda::(anonymous namespace)::gemv_kernel<4>(Shape)";
constexpr const char* kDecode =
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>(Params)";

// Activities of (name, begin, end) in µs.
struct Made {
  uint32_t name;
  int64_t begin, end;
};
Trace trace_of(const std::vector<Made>& made) {
  Trace trace{.names = {kNorm, kGemv, kDecode, "copy to the host"}};
  for (const Made& m : made)
    trace.activities.push_back(
        {.name = m.name, .begin_ns = m.begin * 1000, .end_ns = m.end * 1000});
  return trace;
}

const KernelTime& kernel(const StepTimes& times, const std::string& name) {
  for (const KernelTime& k : times.kernels)
    if (k.name.find(name) != std::string::npos) return k;
  ADD_FAILURE() << "no " << name;
  static const KernelTime none;
  return none;
}

double share(const StepTimes& times, Family family) {
  return times.shares[static_cast<size_t>(family)];
}

TEST(StepTimes, OneAfterAnother) {
  // Two steps of 50: 10 of norm, 30 of products, and 10 in which nothing runs before each norm.
  const Trace trace = trace_of({{0, 10, 20}, {1, 20, 50}, {0, 60, 70}, {1, 70, 100}});
  const StepTimes times = step_times(trace, {0, 100'000, 2});
  EXPECT_EQ(times.steps, 2);
  EXPECT_DOUBLE_EQ(times.step_us, 50);
  EXPECT_DOUBLE_EQ(times.idle, 0.2);
  EXPECT_DOUBLE_EQ(share(times, Family::kProducts), 0.6);
  EXPECT_DOUBLE_EQ(share(times, Family::kRest), 0.2);
  EXPECT_DOUBLE_EQ(share(times, Family::kAttention), 0);
  ASSERT_EQ(times.kernels.size(), 2u);
  EXPECT_EQ(times.kernels[0].name, "attune::ops::cuda::gemv_kernel");
  EXPECT_DOUBLE_EQ(times.kernels[0].launches, 1);
  EXPECT_DOUBLE_EQ(times.kernels[0].us, 30);
  EXPECT_DOUBLE_EQ(times.kernels[0].idle_us, 0);
  EXPECT_DOUBLE_EQ(times.kernels[1].us, 10);
  EXPECT_DOUBLE_EQ(times.kernels[1].idle_us, 10);
}

TEST(StepTimes, AnOverlapIsTheOlderOnes) {
  // The norm waits inside from 5 on for a product that ends at 40; the attention lies within it.
  const Trace trace = trace_of({{1, 0, 40}, {0, 5, 44}, {2, 10, 30}, {1, 42, 100}});
  const StepTimes times = step_times(trace, {0, 100'000, 1});
  EXPECT_DOUBLE_EQ(times.idle, 0);
  EXPECT_DOUBLE_EQ(kernel(times, "norm").us, 4);
  EXPECT_DOUBLE_EQ(kernel(times, "norm").busy_us, 39);
  EXPECT_DOUBLE_EQ(kernel(times, "Decode").us, 0);
  EXPECT_DOUBLE_EQ(kernel(times, "Decode").busy_us, 20);
  EXPECT_DOUBLE_EQ(kernel(times, "gemv").us, 40 + 56);
  EXPECT_DOUBLE_EQ(kernel(times, "gemv").launches, 2);
}

TEST(StepTimes, TheWindowCutsWhatLeavesIt) {
  const Trace trace = trace_of({{1, 0, 15}, {0, 2, 6}, {3, 18, 19}, {1, 25, 60}, {2, 55, 70}});
  const StepTimes times = step_times(trace, {10'000, 50'000, 1});
  EXPECT_THAT(times.idle, DoubleNear((3 + 6) / 40.0, 1e-12));
  EXPECT_DOUBLE_EQ(kernel(times, "gemv").us, 5 + 25);
  EXPECT_DOUBLE_EQ(kernel(times, "gemv").launches, 1);  // one began before
  EXPECT_DOUBLE_EQ(kernel(times, "copy").us, 1);
  EXPECT_EQ(times.kernels.size(), 2u);  // the norm ended before it, the attention begins after
}

TEST(StepTimes, IdleAndSharesAreTheWhole) {
  const Trace trace = trace_of({{3, 1, 2}, {1, 4, 30}, {2, 20, 41}, {0, 43, 50}, {1, 44, 71}});
  const StepTimes times = step_times(trace, {0, 83'000, 3});
  double sum = times.idle, us = 0;
  for (const double s : times.shares) sum += s;
  for (const KernelTime& k : times.kernels) us += k.us + k.idle_us;
  EXPECT_THAT(sum, DoubleNear(1, 1e-12));
  EXPECT_THAT(us, DoubleNear((83 - 12) / 3.0, 1e-9));  // nothing runs after 71, before no kernel
}

TEST(StepTimes, NothingRan) {
  EXPECT_DOUBLE_EQ(step_times({}, {5, 10, 1}).idle, 1);
}

TEST(KernelNames, AreShortened) {
  EXPECT_EQ(short_name(kNorm), "attune::ops::cuda::norm_row");
  EXPECT_EQ(short_name(kDecode), "flashinfer::BatchDecodeWithPagedKVCacheKernel");
  EXPECT_EQ(short_name("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
            "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT");
  EXPECT_EQ(short_name("copy to the host"), "copy to the host");
  EXPECT_EQ(short_name(""), "");
}

TEST(KernelNames, TellTheFamily) {
  EXPECT_EQ(family_of(short_name(kGemv)), Family::kProducts);
  EXPECT_EQ(family_of("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"), Family::kProducts);
  EXPECT_EQ(family_of("cublasLt::splitKreduce_kernel"), Family::kProducts);
  EXPECT_EQ(family_of(short_name(kDecode)), Family::kAttention);
  EXPECT_EQ(family_of("cudnn_generated_fort_native_sdpa_sm90_flash_fprop"), Family::kAttention);
  EXPECT_EQ(family_of("attune::attention::reference::attend"), Family::kAttention);
  EXPECT_EQ(family_of("attune::ops::cuda::draw_kernel"), Family::kSampling);
  EXPECT_EQ(family_of(short_name(kNorm)), Family::kRest);
  EXPECT_EQ(family_of("copy to the host"), Family::kRest);
}

TEST(ChromeTrace, IsJsonInWhichNoThreadOverlaps) {
  Trace trace = trace_of({{1, 100, 140}, {0, 105, 144}, {2, 110, 130}, {3, 144, 150}});
  trace.activities[1].kind = Activity::Kind::kKernel;
  trace.activities[1].grid = {7, 1, 1};
  trace.activities[3].kind = Activity::Kind::kCopy;
  trace.activities[3].bytes = 12;
  const auto parsed = formats::parse_json(chrome_trace({{"batch 1", trace}, {"batch 64", {}}}));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  const auto& events = parsed->find("traceEvents")->as_array();
  ASSERT_EQ(events.size(), 6u);
  const auto number = [&](size_t i, const char* key) { return events[i].find(key)->as_double(); };
  EXPECT_DOUBLE_EQ(number(0, "ts"), 0);
  EXPECT_DOUBLE_EQ(number(1, "ts"), 5);
  EXPECT_DOUBLE_EQ(number(1, "dur"), 39);
  EXPECT_DOUBLE_EQ(number(0, "tid"), 0);
  EXPECT_DOUBLE_EQ(number(1, "tid"), 1);
  EXPECT_DOUBLE_EQ(number(2, "tid"), 2);
  EXPECT_DOUBLE_EQ(number(3, "tid"), 0);  // free again
  EXPECT_EQ(events[1].find("name")->as_string(), "attune::ops::cuda::norm_row");
  EXPECT_DOUBLE_EQ(events[1].find("args")->find("grid")->as_array()[0].as_double(), 7);
  EXPECT_DOUBLE_EQ(events[3].find("args")->find("bytes")->as_double(), 12);
  EXPECT_EQ(events[5].find("args")->find("name")->as_string(), "batch 64");
}

}  // namespace
}  // namespace attune::bench
