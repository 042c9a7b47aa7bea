// What every backend on this machine must do, at every ISA level: the reference's results, whatever
// the shapes, pages and batch, without ever reading what no sequence owns. MHA here; MLA in
// mla_test.cc.
#include <gtest/gtest.h>

#include <algorithm>

#include "suite.h"

namespace attune::attention::test {
namespace {

using tensor::DType;

class Conformance : public Suite {};
ATTUNE_SUITE(Conformance);

using BugA03 = Conformance;
using BugA04 = Conformance;

// One page and one token at every ratio a model may have.
TEST_P(BugA03, EveryRatioInDecode) {
  for (int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 32, 64})
    check({.q_heads = 2 * group, .kv_heads = 2, .qk_dim = 64, .v_dim = 64}, {{1, 1, 1}, {1, 16, 2}},
          text("group ", group), Phase::kDecode);
}
ATTUNE_SUITE(BugA03);

// What is served in prefill is served at the first decode step.
TEST_P(BugA04, OddRatiosInBothPhases) {
  for (int group : {5, 6, 7}) {
    const Shape shape{.q_heads = 4 * group, .kv_heads = 4, .qk_dim = 64, .v_dim = 64};
    check(shape, {{20, 20, 1}}, text("prefill, group ", group));
    check(shape, {{1, 21, 1}}, text("decode, group ", group), Phase::kDecode);
  }
}
ATTUNE_SUITE(BugA04);

TEST_P(Conformance, EveryHeadRatio) {
  for (int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 20, 24, 28, 32, 64, 100, 130}) {
    const Shape shape{.q_heads = 2 * group, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
    check(shape, {{3, 37, 1}, {1, 1, 2}}, text("prefill, group ", group));
    check(shape, {{1, 70, 3}, {1, 16, 4}}, text("decode, group ", group), Phase::kDecode);
  }
}

TEST_P(Conformance, EveryPhase) {
  const Shape shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
  for (Phase phase : kAllPhases) {
    const bool one = phase == Phase::kDecode;
    check(shape, {{one ? 1 : 5, 37, 1}, {1, 1, 2}, {0, 9, 3}, {1, 130, 4}}, phase_name(phase),
          phase);
  }
}

TEST_P(Conformance, EveryPageSizeAndLengthAroundItsEdges) {
  for (int page : {1, 2, 16, 32, 64, 128}) {
    if (!serves_page(page)) continue;
    const Shape shape{.q_heads = 3, .kv_heads = 1, .qk_dim = 16, .v_dim = 16, .page_size = page};
    std::vector<Seq> prefill, decode;
    uint32_t seed = 1;
    for (int len : {1, page - 1, page, page + 1, 2 * page + 1, 63, 64, 65, 95, 96, 97, 129}) {
      prefill.push_back({len, len, ++seed});
      prefill.push_back({std::min(len, 3), len, ++seed});
      decode.push_back({1, len, ++seed});
    }
    decode.push_back({0, 0, 5});
    check(shape, prefill, text("prefill, page ", page));
    check(shape, decode, text("decode, page ", page), Phase::kDecode);
  }
}

TEST_P(Conformance, EveryHeadDim) {
  for (int dim : {1, 4, 8, 13, 64, 72, 80, 96, 128, 192, 256}) {
    check({.q_heads = 4, .kv_heads = 2, .qk_dim = dim, .v_dim = dim}, {{5, 70, 1}, {1, 9, 2}},
          text("dim ", dim));
  }
  check({.q_heads = 4, .kv_heads = 2, .qk_dim = 192, .v_dim = 128}, {{5, 70, 1}}, "192/128");
  check({.q_heads = 4, .kv_heads = 2, .qk_dim = 8, .v_dim = 23}, {{5, 70, 1}}, "8/23");
  for (const HeadDims& dims : caps().head_dims)
    check({.q_heads = 4, .kv_heads = 2, .qk_dim = dims.qk, .v_dim = dims.v}, {{5, 70, 1}},
          text("declared dim ", dims.qk));
}

// Each pair of a head size and a type may be a kernel of its own, and so may each mask.
TEST_P(Conformance, EveryDeclaredKernel) {
  std::vector<HeadDims> dims = caps().head_dims;
  if (dims.empty()) dims = {{64, 64}};
  const auto tree = tree_words({-1, 0, 0, 1, 1, 2, 5, 6, 6});
  for (const HeadDims& d : dims)
    for (DType kv : caps().kv_dtypes)
      for (int group : {1, 4}) {
        const Shape shape{
            .q_heads = 2 * group, .kv_heads = 2, .qk_dim = d.qk, .v_dim = d.v, .kv_dtype = kv};
        const std::string what =
            text("heads of ", d.qk) + text(", group ", group) + ", " + tensor::dtype_name(kv) + " ";
        check(shape, {{1, 520, 1}, {1, 70, 2}, {0, 9, 3}, {1, 1, 4}}, what + "decode",
              Phase::kDecode);
        check(shape, {{90, 140, 1}, {1, 33, 2}, {40, 40, 3}}, what + "prefill");
        check(shape, {{9, 600, 1}}, what + "tree", Phase::kVerify, nullptr, tree);
        LayerParams layer{.q_heads = 2 * group, .kv_heads = 2, .scale = 0.1f, .window = 17};
        check(shape, {{30, 140, 1}, {1, 33, 2}}, what + "window", Phase::kPrefill, &layer);
        layer.soft_cap = 5;
        check(shape, {{30, 140, 1}, {1, 33, 2}}, what + "both", Phase::kPrefill, &layer);
        layer.window = 0;
        check(shape, {{30, 140, 1}, {1, 33, 2}}, what + "soft cap", Phase::kPrefill, &layer);
      }
}

TEST_P(Conformance, LongContextsAcrossSplits) {
  const Shape shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
  for (int len : {511, 512, 513, 1024, 1025, 2100}) {
    check(shape, {{1, len, 1}}, text("decode ", len), Phase::kDecode);
    check(shape, {{7, len, 1}, {1, 3, 2}}, text("extend ", len));
  }
}

TEST_P(Conformance, TypesAndOrders) {
  const std::vector<Seq> seqs = {{40, 100, 1}, {1, 33, 2}};
  for (DType kv : caps().kv_dtypes) {
    for (kv::PageOrder order : {kv::PageOrder::kHeadMajor, kv::PageOrder::kTokenMajor}) {
      const Shape shape{
          .q_heads = 6, .kv_heads = 2, .qk_dim = 24, .v_dim = 20, .kv_dtype = kv, .order = order};
      check(shape, seqs, tensor::dtype_name(kv));
    }
  }
  for (DType q : caps().q_dtypes)
    check({.q_heads = 6, .kv_heads = 2, .qk_dim = 24, .v_dim = 20, .q_dtype = q}, seqs,
          tensor::dtype_name(q));
  const Shape shape = adapt({.q_heads = 6, .kv_heads = 2, .qk_dim = 24, .v_dim = 20});
  const Problem problem(shape, seqs);
  const Output want = reference_.run(problem);
  if (!serves(shape)) return;
  for (DType out : {DType::kBF16, DType::kF16}) {
    if (shape.q_dtype != DType::kF32 && out != shape.q_dtype) continue;
    const Output got = runner_.run(problem, Phase::kPrefill, problem.layer(), out);
    expect_close(got, want, 1e-4 + tolerance(shape), out == DType::kBF16 ? 0x1p-8 : 0x1p-11,
                 "output type");
  }
}

// A pool of any type gives what a float32 pool of the values that it holds gives.
TEST_P(Conformance, EveryTypeIsReadAsTheValuesItHolds) {
  const int len = 70;
  for (DType type : caps().kv_dtypes) {
    for (Shape shape :
         {Shape{.q_heads = 4, .kv_heads = 2, .qk_dim = 24, .v_dim = 20}, absorbed(4, 24, 8)}) {
      shape = adapt(shape);
      Problem plain(shape, {{5, len, 1}});
      // A pool of 16 bits holds those of 8.
      if (shape.kv_dtype != DType::kF32 && tensor::dtype_bytes(type, 1) > 1) continue;
      shape.kv_dtype = type;
      const Problem narrow(shape, {{5, len, 1}});
      if (!serves(shape) || !serves(plain.shape())) continue;
      for (const bool v_part : {false, true}) {
        if (v_part && shape.v_in_k) continue;
        const int dim = v_part ? shape.v_dim : shape.qk_dim, heads = shape.kv_heads;
        const auto values = Problem::values(1, v_part ? 1 : 0, len, heads * dim);
        for (int i = 0; i < len * heads * dim; ++i)
          plain.poke(0, i / dim / heads, i / dim % heads, i % dim, v_part,
                     rounded(values[i], type));
      }
      expect_close(runner_.run(narrow), runner_.run(plain), tolerance(shape, 2e-6),
                   tolerance(shape, 2e-6), tensor::dtype_name(type));
    }
  }
}

TEST_P(Conformance, WindowSoftCapAndSinks) {
  const Shape shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
  const std::vector<Seq> seqs = {{70, 70, 1}, {5, 600, 2}, {1, 200, 3}, {60, 400, 4}, {1, 1, 5}};
  const std::vector<float> sinks = {-3.0f, 0.0f, 1.5f, 8.0f, -80.0f, 2.0f};
  LayerParams layer{.q_heads = 6, .kv_heads = 2, .scale = 1.3f};
  for (int window : {0, 1, 17, 64, 129, 1000}) {
    for (int also : {0, 1, 2, 3}) {
      layer.window = window;
      layer.soft_cap = also & 1 ? 5.0f : 0.0f;
      layer.sinks = also & 2 ? sinks.data() : nullptr;
      check(shape, seqs,
            text("window ", window) + (also & 1 ? ", cap" : "") + (also & 2 ? ", sinks" : ""),
            Phase::kPrefill, &layer);
    }
  }
  Shape open = shape;
  open.causal = false;
  check(open, seqs, "not causal", Phase::kPrefill, &layer);
}

TEST_P(Conformance, TreeMask) {
  const Shape shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
  std::vector<int> wide(64);
  for (int i = 0; i < 64; ++i) wide[i] = (i - 1) / 3;
  wide[0] = -1;
  auto words = tree_words({-1, 0, 0, 1, 1, 2, 5});
  for (uint64_t w : tree_words(wide)) words.push_back(w);
  words.push_back(1);
  const std::vector<Seq> seqs = {{7, 70, 1}, {64, 64 + 500, 2}, {1, 1, 3}};
  LayerParams layer{.q_heads = 6, .kv_heads = 2, .scale = 0.25f};
  for (int window : {0, 2, 40}) {
    layer.window = window;
    check(shape, seqs, text("tree, window ", window), Phase::kVerify, &layer, words);
  }
  // A chain is plain causal attention.
  Problem chain(adapt(shape), {{7, 90, 1}}), causal(adapt(shape), {{7, 90, 1}});
  if (!serves(adapt(shape), Phase::kVerify, layer, true)) return;
  chain.set_tree(tree_words({-1, 0, 1, 2, 3, 4, 5}));
  expect_close(runner_.run(chain, Phase::kVerify), runner_.run(causal, Phase::kVerify),
               tolerance(chain.shape(), 1e-6), tolerance(chain.shape(), 1e-6), "chain");
}

TEST_P(Conformance, EmptyBatch) {
  const Problem problem(adapt({}), {});
  if (!serves(problem.shape())) return;
  for (Phase phase : kAllPhases) {
    if (!serves(problem.shape(), phase)) continue;
    const Output out = runner_.run(problem, phase);
    EXPECT_TRUE(out.out.empty());
  }
}

TEST_P(Conformance, LargeMixedBatch) {
  std::vector<Seq> seqs;
  for (uint32_t i = 0; i < 40; ++i)
    seqs.push_back({int32_t(i % 3 == 0 ? i % 29 : 1), int32_t(30 + (i * 37) % 300), i + 1});
  check({.q_heads = 3, .kv_heads = 3, .qk_dim = 16, .v_dim = 16}, seqs, "mixed");
}

// Attention over [0, n) merged with attention over [n, end) is attention over all.
TEST_P(Conformance, PartialsMergeByLse) {
  const Shape shape = adapt(
      {.q_heads = 4, .kv_heads = 2, .qk_dim = 16, .v_dim = 16, .page_size = 1, .causal = false});
  const int total = 150, q_len = 4, kd = shape.qk_dim, vd = shape.v_dim;
  const Problem all(shape, {{q_len, total, 1}});
  if (!serves(shape) || !caps().lse_out || !takes(all)) return skip_undeclared("LSE");
  const LayerParams layer = all.layer();
  const Output want = runner_.run(all, Phase::kPrefill, layer);
  const auto k = Problem::values(1, 0, total, 2 * kd), v = Problem::values(1, 1, total, 2 * vd);
  for (int cut : {0, 1, 64, 149, 150}) {
    std::vector<Output> parts;
    if (!takes(Problem(shape, {{q_len, std::min(cut, total - cut), 77}}))) continue;
    for (auto [begin, end] : {std::pair{0, cut}, std::pair{cut, total}}) {
      Problem p(shape, {{q_len, end - begin, 77}});
      p.set_q(all.q());
      for (int i = begin; i < end; ++i) {
        for (int h = 0; h < 2; ++h) {
          for (int d = 0; d < kd; ++d) p.poke(0, i - begin, h, d, false, k[(i * 2 + h) * kd + d]);
          for (int d = 0; d < vd; ++d) p.poke(0, i - begin, h, d, true, v[(i * 2 + h) * vd + d]);
        }
      }
      parts.push_back(runner_.run(p, Phase::kPrefill, layer));
    }
    expect_close(merge(parts, 4, vd), want, 2 * tolerance(shape), 2 * tolerance(shape),
                 text("cut at ", cut));
  }
}

}  // namespace
}  // namespace attune::attention::test
