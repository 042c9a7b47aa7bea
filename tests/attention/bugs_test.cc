// Public bug reports of kind A (wrong results, illegal access) that a CPU backend could repeat,
// each as its own small case, on every backend of this machine at its best ISA level.
// and A-27, which are about splits, are in tuning_test.cc; A-14 is in host_memory_test.cc and
// memory_gpu_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "suite.h"

namespace attune::attention::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Bug = Suite;
using BugA02 = Bug;
using BugA08 = Bug;
using BugA11 = Bug;
using BugA17 = Bug;
using BugA20 = Bug;
using BugA21 = Bug;
using BugA24 = Bug;
using BugA26 = Bug;
using BugA28 = Bug;

#define ATTUNE_BUG(number) ATTUNE_SUITE_OVER(number, best_targets())

// V beyond each sequence's length holds NaN or Inf, and weighs nothing.
TEST_P(BugA02, UnusedSlotsNeverLeakIntoValidRows) {
  const Shape shape = adapt({.q_heads = 6, .kv_heads = 2, .qk_dim = 24, .v_dim = 24});
  if (!serves(shape)) return;
  for (int len : {1, 3, 15, 17, 63, 65, 100}) {
    const std::vector<Seq> seqs = {{std::min(len, 5), len, 1}, {1, len + 1, 2}};
    const Output clean = runner_.run(Problem(shape, seqs, Fill::kZero, 1));
    for (Fill fill : {Fill::kNaN, Fill::kInf})
      expect_same(runner_.run(Problem(shape, seqs, fill, 5)), clean, shape,
                  "length " + std::to_string(len));
  }
}
// The same inside a batch: what is later in its own sequence is no business of an earlier row. A
// tile of tensor cores multiplies what is hidden by a weight of 0, which only finite values
// survive.
TEST_P(BugA02, LaterTokensOfTheSequenceDoNotReachEarlierRows) {
  const Shape shape = adapt({.q_heads = 2, .kv_heads = 1, .qk_dim = 16, .v_dim = 16});
  if (!serves(shape)) return;
  constexpr float kLarge = 6e4f;  // in every type of 16 bits
  const bool plain = !runner_.on_gpu() || caps().name == "reference";
  Problem sick(shape, {{40, 40, 1}});
  for (int d = 0; d < std::min(shape.qk_dim, shape.v_dim); ++d) {
    sick.poke(0, 30, 0, d, true, plain ? kInf : kLarge);
    sick.poke(0, 33, 0, d, false, plain ? kNaN : kLarge);
  }
  Output got = runner_.run(sick), want = runner_.run(Problem(shape, {{40, 40, 1}}));
  for (Output* o : {&got, &want}) {
    o->out.resize(30 * 2 * shape.v_dim);
    if (!o->lse.empty()) o->lse.resize(30 * 2);
  }
  expect_same_bits(got, want, "rows before position 30");
}
ATTUNE_BUG(BugA02);

// tanh(-inf) is finite: with the cap after the mask, hidden keys would come back.
TEST_P(BugA08, SoftCapComesBeforeTheMask) {
  const Shape shape = adapt({.q_heads = 1, .kv_heads = 1, .qk_dim = 8, .v_dim = 8});
  Problem p(shape, {{1, 64, 1}});
  LayerParams layer = p.layer();
  layer.soft_cap = 30;
  layer.window = 1;
  if (!serves(shape, Phase::kDecode, layer)) return;
  const Output got = runner_.run(p, Phase::kDecode, layer);
  const int32_t dim = shape.v_dim;
  const auto v = Problem::values(1, 1, 64, dim);
  for (int d = 0; d < dim; ++d) EXPECT_EQ(got.out[d], rounded(v[63 * dim + d], shape.kv_dtype));
}
ATTUNE_BUG(BugA08);

// The scores of each head differ in size, so that transposed LSEs would show.
TEST_P(BugA11, LseByRowAndHead) {
  const Shape shape = adapt({.q_heads = 8, .kv_heads = 2, .qk_dim = 16, .v_dim = 16});
  if (!serves(shape)) return;
  if (!caps().lse_out) return skip_undeclared("LSE");
  Problem p(shape, {{1, 1500, 1}, {2, 700, 2}});
  std::vector<float> q = p.q();
  for (size_t i = 0; i < q.size(); ++i) q[i] *= float(1 + i / shape.qk_dim % 8);
  p.set_q(q);
  const Output want = reference_.run(p), got = runner_.run(p);
  expect_close(got, want, tolerance(shape, 5e-5), tolerance(shape, 5e-5), "lse");
  for (int h = 1; h < 8; ++h) EXPECT_GT(std::abs(want.lse[h] - want.lse[h - 1]), 1e-3);
}
ATTUNE_BUG(BugA11);

TEST_P(BugA17, EmptySequencesAnywhereChangeNothing) {
  const Shape shape = adapt({.q_heads = 4, .kv_heads = 2, .qk_dim = 16, .v_dim = 16});
  if (!serves(shape)) return;
  std::vector<std::vector<int>> cases;
  std::vector<int> a = {0, 0, 1, 1}, b = {0, 1, 2};
  do cases.push_back(a);
  while (std::next_permutation(a.begin(), a.end()));
  do cases.push_back(b);
  while (std::next_permutation(b.begin(), b.end()));
  for (const auto& lengths : cases) {
    for (int empty_kv : {0, 20}) {
      std::vector<Seq> all, filled;
      for (size_t i = 0; i < lengths.size(); ++i) {
        const Seq s{lengths[i], lengths[i] ? 30 + int(i) : empty_kv, uint32_t(i + 1)};
        all.push_back(s);
        if (lengths[i]) filled.push_back(s);
      }
      for (Phase phase : {Phase::kPrefill, Phase::kDecode})
        expect_same(runner_.run(Problem(shape, all), phase),
                    runner_.run(Problem(shape, filled), phase), shape, "with empty sequences");
    }
  }
}
ATTUNE_BUG(BugA17);

TEST_P(BugA20, CausalFromTheEndSoChunksAgree) {
  const Shape shape =
      adapt({.q_heads = 2, .kv_heads = 1, .qk_dim = 16, .v_dim = 16, .page_size = 4});
  if (!serves(shape)) return;
  const Output whole = runner_.run(Problem(shape, {{10, 10, 1}}));
  for (int chunk : {1, 2, 3}) {
    Output joined;
    for (int end = chunk;; end = std::min(end + chunk, 10)) {
      const int begin = (end - 1) / chunk * chunk;
      const Output part = runner_.run(Problem(shape, {{end - begin, end, 1}}));
      joined.out.insert(joined.out.end(), part.out.begin(), part.out.end());
      joined.lse.insert(joined.lse.end(), part.lse.begin(), part.lse.end());
      if (end == 10) break;
    }
    expect_close(joined, whole, tolerance(shape, 1e-6), tolerance(shape, 1e-6),
                 "chunks of " + std::to_string(chunk));
  }
  expect_close(runner_.run(Problem(shape, {{3, 10, 1}})),
               reference_.run(Problem(shape, {{3, 10, 1}})), tolerance(shape, 1e-5),
               tolerance(shape, 1e-5), "q 3, kv 10");
}
ATTUNE_BUG(BugA20);

TEST_P(BugA21, RowsWithoutAKeyGiveZeroAndMinusInfinity) {
  const Shape shape = adapt({.q_heads = 4, .kv_heads = 2, .qk_dim = 16, .v_dim = 16});
  if (!serves(shape)) return;
  const Problem p(shape, {{8, 5, 1}, {3, 0, 2}, {1, 9, 3}});
  if (!takes(p)) return skip_undeclared("rows without a key");
  const Output got = runner_.run(p);
  const auto empty = [&](int row) {
    const int32_t width = 4 * shape.v_dim;
    for (int i = 0; i < width; ++i) EXPECT_EQ(got.out[row * width + i], 0.0f) << row;
    for (int h = 0; h < 4 && caps().lse_out; ++h) EXPECT_EQ(got.lse[row * 4 + h], -kInf) << row;
  };
  for (int row : {0, 1, 2, 8, 9, 10}) empty(row);
  expect_close(got, reference_.run(p), tolerance(shape, 1e-5), tolerance(shape, 1e-5), "the rest");
  LayerParams layer = p.layer();
  layer.window = 2;
  if (!serves(shape, Phase::kPrefill, layer)) return;
  expect_close(runner_.run(p, Phase::kPrefill, layer), reference_.run(p, Phase::kPrefill, layer),
               tolerance(shape, 1e-5), tolerance(shape, 1e-5), "with a window");
}
ATTUNE_BUG(BugA21);

// Queries keep their type beside a cache of 8 bits: what would saturate there counts in full. 1024
// times larger ones at a 1024th of the scale are the same sums.
TEST_P(BugA24, LargeQueriesOverAnEightBitCache) {
  constexpr float kLarger = 1024;
  bool any = false;
  for (tensor::DType kv : caps().kv_dtypes) {
    if (tensor::dtype_bytes(kv, 1) > 1) continue;
    any = true;
    for (Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      const Shape shape =
          adapt({.q_heads = 6, .kv_heads = 2, .qk_dim = 64, .v_dim = 64, .kv_dtype = kv});
      if (!serves(shape, phase)) continue;
      const int q_len = phase == Phase::kDecode ? 1 : 9;
      Problem p(shape, {{q_len, 70, 1}, {q_len, 300, 2}});
      const Output plain = runner_.run(p, phase);
      std::vector<float> q = p.q();
      for (float& x : q) x *= kLarger;
      p.set_q(q);
      LayerParams layer = p.layer();
      layer.scale /= kLarger;
      const Output large = runner_.run(p, phase, layer);
      const std::string what = std::string(phase_name(phase)) + " " + tensor::dtype_name(kv);
      expect_close(large, plain, tolerance(shape), tolerance(shape), what);
      expect_close(large, reference_.run(p, phase, layer), tolerance(shape), tolerance(shape),
                   what);
    }
  }
  if (!any) skip_undeclared("caches of 8 bits");
}
ATTUNE_BUG(BugA24);

TEST_P(BugA26, WindowIsAnchoredAtTheQuery) {
  const Shape shape = adapt({.q_heads = 2, .kv_heads = 1, .qk_dim = 16, .v_dim = 16});
  if (!serves(shape)) return;
  std::vector<Seq> seqs;
  uint32_t seed = 0;
  for (int len : {127, 128, 129, 500}) {
    seqs.push_back({len, len, ++seed});
    seqs.push_back({9, len, ++seed});
  }
  const Problem p(shape, seqs);
  LayerParams layer = p.layer();
  layer.window = 128;
  if (!serves(shape, Phase::kPrefill, layer)) return;
  expect_close(runner_.run(p, Phase::kPrefill, layer), reference_.run(p, Phase::kPrefill, layer),
               tolerance(shape, 1e-5), tolerance(shape, 1e-5), "window 128");
}
ATTUNE_BUG(BugA26);

TEST_P(BugA28, PageIdsAreBounded) {
  const Shape shape = adapt({});
  if (!serves(shape)) return;
  const std::vector<Seq> seqs = {{1, 40, 1}, {2, 3 * shape.page_size + 22, 2}};
  Problem good(shape, seqs);
  EXPECT_TRUE(runner_.plan_only(good, Phase::kPrefill).ok());
  const int32_t slots = good.limits(1).num_slots;
  for (int32_t bad : {-1, slots, std::numeric_limits<int32_t>::max()}) {
    Problem p(shape, seqs);
    p.page_slots().back() = bad;
    const Status status = runner_.plan_only(p, Phase::kPrefill);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find(std::to_string(bad)), std::string::npos) << status.message();
  }
  Problem last(shape, seqs);
  last.page_slots().back() = slots - 1;
  EXPECT_TRUE(runner_.plan_only(last, Phase::kPrefill).ok());
  Problem shared(shape, seqs);  // pages shared by requests are what a prefix cache is for
  shared.page_slots().back() = shared.page_slots()[0];
  EXPECT_TRUE(runner_.plan_only(shared, Phase::kPrefill).ok());
  Problem longer(shape, seqs);
  // More than its pages hold.
  longer.kv_lens()[0] = (40 + shape.page_size - 1) / shape.page_size * shape.page_size + 1;
  EXPECT_FALSE(runner_.plan_only(longer, Phase::kPrefill).ok());
}
ATTUNE_BUG(BugA28);

// Every mix of empty and real partials.
TEST(BugA01, MergingEmptyPartials) {
  const int dim = 5;
  for (int count : {1, 2, 3, 8}) {
    for (int mask = 0; mask < (1 << count); ++mask) {
      std::vector<std::vector<float>> outs;
      std::vector<float> lses(count);
      std::vector<Output> parts;
      double sum = 0;
      std::vector<double> want(dim, 0.0);
      for (int p = 0; p < count; ++p) {
        const bool real = mask >> p & 1;
        lses[p] = real ? 0.5f * float(p) - 90.0f : -kInf;
        outs.push_back(std::vector<float>(dim, kNaN));  // of an empty one: never read
        for (int d = 0; real && d < dim; ++d) {
          outs[p][d] = float(d + 3 * p) / 7.0f;
          want[d] += std::exp(double(lses[p])) * outs[p][d];
        }
        if (real) sum += std::exp(double(lses[p]));
      }
      for (int p = 0; p < count; ++p) parts.push_back({outs[p], {lses[p]}});
      const Output all = merge(parts, 1, dim);
      const std::vector<float>& out = all.out;
      const float lse = all.lse[0];
      if (mask == 0) {
        EXPECT_EQ(lse, -kInf);
        EXPECT_EQ(out, std::vector<float>(dim, 0.0f));
        continue;
      }
      EXPECT_NEAR(lse, std::log(sum), 2e-5);  // a float32 near 90 has no finer steps
      for (int d = 0; d < dim; ++d) EXPECT_NEAR(out[d], want[d] / sum, 5e-5);
      if ((mask & (mask - 1)) == 0) {  // one real partial: it, bit for bit
        const int p = __builtin_ctz(mask);
        EXPECT_EQ(out, outs[p]);
        EXPECT_EQ(lse, lses[p]);
      }
    }
  }
}

}  // namespace
}  // namespace attune::attention::test
