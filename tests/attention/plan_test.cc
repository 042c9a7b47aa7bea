// A plan lives for many steps: nothing of one batch stays in the next, and padding has no effect.
// Bug-log entries of kind C as far as a CPU has them.
#include <gtest/gtest.h>

#include <algorithm>

#include "suite.h"

namespace attune::attention::test {
namespace {

class PlanReuse : public Suite {
 protected:
  // Pages and latents, as far as the backend declares them for decode.
  std::vector<Shape> shapes() {
    std::vector<Shape> all;
    for (const Shape& shape :
         {Shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16}, absorbed(16, 16, 8)})
      if (serves(adapt(shape), Phase::kDecode)) all.push_back(adapt(shape));
    return all;
  }
  // And dense rows, which only prefill has.
  std::vector<Shape> shapes_and_rows() {
    std::vector<Shape> all = shapes();
    const Shape rows = adapt(ragged(2, 24, 16));
    if (serves(rows)) all.push_back(rows);
    return all;
  }
};
using BugA06 = PlanReuse;
using BugC01 = PlanReuse;
using BugC02 = PlanReuse;
using BugC05 = PlanReuse;
using BugC06 = PlanReuse;
using BugC07 = PlanReuse;
using BugC12 = PlanReuse;

// A plan that served other batches gives the bits of a fresh one.
TEST_P(BugC05, PlanIsMadeAnewForEachLength) {
  for (const Shape& shape : shapes_and_rows()) {
    const Phase phase = reads_rows(shape.path) ? Phase::kPrefill : Phase::kDecode;
    Problem p(shape, {{1, 5000, 1}, {1, 5000, 2}});
    const auto plan = runner_.make_plan(p);
    for (int len : {35, 36, 300, 2400, 5000, 40}) {
      p.kv_lens() = {len, 5001 - len};
      const Output got = runner_.run_with(*plan, p, phase, p.layer());
      expect_same(got, runner_.run(p, phase), shape, text("length ", len));
      if (len == 300)
        expect_close(got, reference_.run(p, phase), tolerance(shape), tolerance(shape),
                     "length 300");
    }
  }
}
ATTUNE_SUITE(BugC05);

// Two requests take turns in the same arrays.
TEST_P(BugC06, EachStepReadsWhatIsInTheArraysNow) {
  for (const Shape& shape : shapes()) {
    Problem p(shape, {{1, 130, 1}, {1, 130, 2}});
    const auto plan = runner_.make_plan(p);
    const auto mine = p.page_slots();
    auto swapped = mine;
    std::rotate(swapped.begin(), swapped.begin() + static_cast<int64_t>(mine.size()) / 2,
                swapped.end());
    const Output want[2] = {runner_.run(p, Phase::kDecode), [&] {
                              p.page_slots() = swapped;
                              return runner_.run(p, Phase::kDecode);
                            }()};
    EXPECT_NE(want[0].out, want[1].out);
    for (int i = 0; i < 50; ++i) {
      const auto& now = i % 2 ? swapped : mine;
      std::copy(now.begin(), now.end(), p.page_slots().begin());
      expect_same(runner_.run_with(*plan, p, Phase::kDecode, p.layer()), want[i % 2], shape,
                  text("turn ", i));
    }
  }
}
ATTUNE_SUITE(BugC06);

// Every number of sequences up to a bucket's, the rest without rows or of one key on the padding
// slot, which is poisoned: same bits, and nothing written beside them (Runner's guards, and its
// copy of the pool).
TEST_P(BugC01, PaddingSequencesWriteNowhere) {
  for (const Shape& shape : shapes()) {
    for (int bucket : {1, 2, 4, 8}) {
      for (int real = bucket / 2; real <= bucket; ++real) {
        std::vector<Seq> seqs;
        for (int i = 0; i < real; ++i) seqs.push_back({1, 20 + 90 * i, uint32_t(i + 1)});
        const Output want = runner_.run(Problem(shape, seqs), Phase::kDecode);
        for (int rows : {0, 1}) {
          std::vector<Seq> padded = seqs;
          padded.resize(bucket, {rows, rows, 99});
          Problem p(shape, padded);
          if (rows > 0)
            std::fill(p.page_slots().end() - (bucket - real), p.page_slots().end(),
                      kv::kPaddingSlot.value);
          Output got = runner_.run(p, Phase::kDecode);
          got.out.resize(want.out.size());
          got.lse.resize(want.lse.size());
          expect_same(got, want, shape,
                      text("sequences: ", real) + text(" of ", bucket) + text(", rows: ", rows));
        }
      }
    }
  }
}
ATTUNE_SUITE(BugC01);

// Rows that see nothing, in the middle of a batch and poisoned all around, are 0 and leave the
// others alone.
TEST_P(BugC02, PaddingRowsHaveNoEffectOnRealOnes) {
  for (const Shape& shape : shapes()) {
    const Output real = runner_.run(Problem(shape, {{1, 40, 1}, {1, 700, 2}}), Phase::kDecode);
    const Problem mixed(shape, {{1, 40, 1}, {1, 0, 3}, {1, 700, 2}, {1, 0, 4}}, Fill::kInf);
    if (!takes(mixed, Phase::kDecode)) return skip_undeclared("rows without a key");
    Output padded = runner_.run(mixed, Phase::kDecode);
    const auto keep = [](std::vector<float>* v) {  // rows 0 and 2 of 4
      const auto row = static_cast<int64_t>(v->size()) / 4;
      for (int64_t i = 0; i < row; ++i) (*v)[row + i] = (*v)[2 * row + i];
      v->resize(2 * row);
    };
    for (size_t i = 0; i < padded.out.size() / 4; ++i)
      ASSERT_EQ(padded.out[padded.out.size() / 4 + i], 0.0f);
    keep(&padded.out);
    keep(&padded.lse);
    expect_same(padded, real, shape, "with padding rows");
  }
}
ATTUNE_SUITE(BugC02);

// The page that padding names may hold anything, and is not written (Runner compares the pool).
TEST_P(BugC07, ThePaddingPageIsNeitherReadNorWritten) {
  for (const Shape& shape : shapes()) {
    for (Fill fill : {Fill::kNaN, Fill::kInf}) {
      Problem p(shape, {{1, 40, 1}, {0, 10, 2}}, fill);
      p.page_slots().back() = 0;
      const Output want = runner_.run(Problem(shape, {{1, 40, 1}}), Phase::kDecode);
      expect_same(runner_.run(p, Phase::kDecode), want, shape, "with padding");
    }
  }
}
ATTUNE_SUITE(BugC07);

// One plan through all phases, with page tables of several lengths.
TEST_P(BugC12, PhasesShareAPlan) {
  for (const Shape& shape : shapes()) {
    Problem p(shape, {{1, 100, 1}, {1, 33, 2}, {1, 1, 3}});
    const auto plan = runner_.make_plan(p);
    const Output want = reference_.run(p);
    for (int round = 0; round < 2; ++round)
      for (Phase phase : {Phase::kDecode, Phase::kVerify, Phase::kPrefill, Phase::kDraftExtend})
        if (serves(shape, phase))
          expect_close(runner_.run_with(*plan, p, phase, p.layer()), want, tolerance(shape),
                       tolerance(shape), phase_name(phase));
  }
}
ATTUNE_SUITE(BugC12);

// Layers of one plan differ in their windows: none is fixed when it is made.
TEST_P(BugA06, WindowIsTheLayersNotThePlans) {
  for (const Shape& shape : shapes_and_rows()) {
    const Problem p(shape, {{9, 200, 1}, {1, 60, 2}});
    const auto plan = runner_.make_plan(p);
    LayerParams layer = p.layer();
    if (!serves(shape)) continue;
    runner_.run_with(*plan, p, Phase::kPrefill, layer);
    for (int window : {17, 0, 100, 17}) {
      layer.window = window;
      if (!serves(shape, Phase::kPrefill, layer)) continue;
      expect_close(runner_.execute(*plan, p, layer), reference_.run(p, Phase::kPrefill, layer),
                   tolerance(shape), tolerance(shape), text("window ", window));
    }
  }
}
ATTUNE_SUITE(BugA06);

}  // namespace
}  // namespace attune::attention::test
