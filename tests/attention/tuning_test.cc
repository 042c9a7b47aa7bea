// What a user may fix of a backend's choices (docs/selection-rules.md, F2 to F4): a choice changes
// speed and rounding, never the result.
#include <gtest/gtest.h>

#include "suite.h"

namespace attune::attention::test {
namespace {

class Tuned : public Suite {
 protected:
  static constexpr int kSplits[] = {1, 2, 3, 5, 16, 1000};

  // Ragged queries, and keys from none to many blocks; MHA, GQA and latents.
  std::vector<Problem> problems() {
    const std::vector<Seq> seqs = {{1, 5, 1}, {3, 500, 2}, {7, 2000, 3}, {2, 0, 4}, {0, 30, 5}};
    std::vector<Seq> with_keys = seqs;
    with_keys[3].kv_len = 40;
    std::vector<Problem> all;
    for (const Shape& shape : {Shape{.q_heads = 3, .kv_heads = 3, .qk_dim = 16, .v_dim = 16},
                               Shape{.q_heads = 8, .kv_heads = 2, .qk_dim = 16, .v_dim = 16},
                               absorbed(16, 16, 8), ragged(2, 24, 16)})
      if (serves(adapt(shape))) {
        const bool any_rows = takes(Problem(adapt(shape), seqs));
        all.push_back(Problem(adapt(shape), any_rows ? seqs : with_keys));
      }
    return all;
  }
  Output run(const Runner& runner, const Problem& p, const Tuning& tuning,
             Phase phase = Phase::kPrefill) const {
    return runner.run(p, phase, p.layer(), tensor::DType::kF32, tuning);
  }
};
ATTUNE_SUITE(Tuned);
using BugA09 = Tuned;
using BugA13 = Tuned;
using BugA27 = Tuned;

// Also what a backend that cannot follow must do with a wish: its own choice.
TEST_P(Tuned, EveryWishGivesTheReferencesResult) {
  for (const Problem& p : problems()) {
    const Output want = reference_.run(p);
    for (int splits : kSplits)
      expect_close(run(runner_, p, {.num_splits = splits}), want, tolerance(p.shape()),
                   tolerance(p.shape()), text("splits: ", splits));
    for (Toggle t : {Toggle::kOn, Toggle::kOff}) {
      expect_close(run(runner_, p, {.pack_gqa = t}), want, tolerance(p.shape()),
                   tolerance(p.shape()), text("pack_gqa ", int(t)));
      expect_close(run(runner_, p, {.num_splits = 3, .pack_gqa = t, .pdl = t}), want,
                   tolerance(p.shape()), tolerance(p.shape()), text("all, ", int(t)));
    }
  }
}

// Whether heads share a tile is no matter of any sum on the CPU.
TEST_P(Tuned, PackedHeadsKeepTheirBits) {
  if (!caps().pack_gqa || !caps().batch_invariant)
    return skip_undeclared("pack_gqa and batch_invariant");
  for (const Problem& p : problems()) {
    const Output want = run(runner_, p, {});
    for (Toggle t : {Toggle::kOn, Toggle::kOff})
      expect_same_bits(run(runner_, p, {.pack_gqa = t}), want, text("pack_gqa ", int(t)));
  }
}

// Parts of fixed number are the same whoever computes them.
TEST_P(Tuned, SplitsGiveTheSameBitsOnAnyThreads) {
  if (!caps().num_splits) return skip_undeclared("num_splits");
  for (int splits : kSplits) {
    for (const Problem& p : problems()) {
      const Output want = run(runner_, p, {.num_splits = splits});
      for (int threads : {1, 3, 8})
        expect_same_bits(
            run(Runner(GetParam().backend, GetParam().isa, threads), p, {.num_splits = splits}),
            want, text("splits: ", splits) + text(", threads: ", threads));
    }
  }
}

// One part is one sum over all keys in order, wherever the sequence ends: invariant, as by default.
// More move with the length, which is why deterministic mode refuses them (S12).
TEST_P(Tuned, OnePartStaysInvariant) {
  if (!caps().num_splits || !caps().batch_invariant)
    return skip_undeclared("num_splits and batch_invariant");
  const Shape shape = adapt({.q_heads = 4, .kv_heads = 2, .qk_dim = 16, .v_dim = 16});
  if (!serves(shape) || !serves(shape, Phase::kDecode)) return;
  const int64_t row = int64_t{4} * shape.v_dim;
  const Output whole = run(runner_, Problem(shape, {{1200, 1200, 9}}), {.num_splits = 1});
  for (int len : {1, 500, 513, 1100}) {
    const Output got =
        run(runner_, Problem(shape, {{1, len, 9}, {1, 700, 2}}), {.num_splits = 1}, Phase::kDecode);
    for (int64_t i = 0; i < row; ++i) ASSERT_EQ(got.out[i], whole.out[(len - 1) * row + i]) << len;
  }
}

TEST_P(BugA09, EverySplitCountOfARaggedPagedBatch) {
  const Shape shape = adapt({.q_heads = 4, .kv_heads = 2, .qk_dim = 16, .v_dim = 16});
  if (!serves(shape)) return;
  const Problem p(shape, {{1, 5, 1}, {3, 500, 2}, {7, 5000, 3}});
  const Output want = run(runner_, p, {.num_splits = 1});
  for (int splits : {0, 2, 5, 16})
    for (int threads : {1, 2, 8})
      expect_close(
          run(Runner(GetParam().backend, GetParam().isa, threads), p, {.num_splits = splits}), want,
          tolerance(shape), tolerance(shape),
          text("splits: ", splits) + text(", threads: ", threads));
}
ATTUNE_SUITE(BugA09);

// Runner surrounds the output rows and LSEs with guards; here with parts to be combined, into
// contiguous rows of several types.
TEST_P(BugA13, CombiningPartsWritesNothingBesideTheOutput) {
  for (const Shape& wanted : {Shape{.q_heads = 4, .kv_heads = 2, .qk_dim = 16, .v_dim = 13},
                              Shape{.q_heads = 1, .kv_heads = 1, .qk_dim = 7, .v_dim = 5}}) {
    const Shape shape = adapt(wanted);
    if (!serves(shape)) return;
    const Problem p(shape, {{1, 1500, 1}, {0, 40, 2}, {3, 700, 3}});
    const Output want = reference_.run(p);
    for (int splits : {0, 2, 7})
      for (tensor::DType type : {tensor::DType::kF32, tensor::DType::kBF16})
        expect_close(runner_.run(p, Phase::kDecode, p.layer(), type, {.num_splits = splits}), want,
                     tolerance(shape, 1e-4),
                     type == tensor::DType::kF32 ? tolerance(shape, 1e-5) : 0x1p-8,
                     text("splits: ", splits));
  }
}
ATTUNE_SUITE(BugA13);

// Scratch is full of NaN before each plan (Runner), and threads race for the parts.
TEST_P(BugA27, RepeatsAreBitIdenticalAtEverySplitCount) {
  const Shape shape = adapt({.q_heads = 3, .kv_heads = 1, .qk_dim = 16, .v_dim = 16});
  if (!serves(shape)) return;
  const Problem p(shape, {{1, 3000, 1}, {2, 1500, 2}, {1, 9, 3}});
  for (int splits : {0, 1, 8, 16, 32}) {
    const Output first = run(runner_, p, {.num_splits = splits});
    const int repeats = caps().name == "reference" ? 2 : runner_.on_gpu() ? 10 : 50;
    for (int i = 0; i < repeats; ++i)
      expect_same_bits(run(runner_, p, {.num_splits = splits}), first, text("splits: ", splits));
  }
}
ATTUNE_SUITE(BugA27);

}  // namespace
}  // namespace attune::attention::test
