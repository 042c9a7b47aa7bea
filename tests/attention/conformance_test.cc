// What every backend on this machine must do, at every ISA level: the reference's results, whatever
// the shapes, pages and batch, without ever reading what no sequence owns.
#include <gtest/gtest.h>

#include <limits>

#include "attention/merge.h"
#include "problem.h"

namespace attune::attention::test {
namespace {

using tensor::DType;
constexpr double kTol = 2e-5;

struct Target {
  std::string backend, isa;
};

std::vector<Target> targets() {
  std::vector<Target> all;
  for (const BackendEntry& e : backends())
    for (const std::string& isa : isa_levels())
      if (e.unavailable.empty()) all.push_back({e.capabilities.name, isa});
  return all;
}

class Conformance : public ::testing::TestWithParam<Target> {
 protected:
  Conformance() : runner_(GetParam().backend, GetParam().isa, 2) {}
  // Poisoned pool against the reference on a clean one.
  void check(const Shape& shape, const std::vector<Seq>& seqs, const std::string& what,
             Phase phase = Phase::kPrefill, const LayerParams* params = nullptr) {
    const Problem clean(shape, seqs, Fill::kZero), nan(shape, seqs, Fill::kNaN, 2),
        inf(shape, seqs, Fill::kInf, 3);
    LayerParams layer = params ? *params : clean.layer();
    const Output want = reference_.run(clean, phase, layer);
    expect_close(runner_.run(nan, phase, layer), want, kTol, kTol, what);
    expect_close(runner_.run(inf, phase, layer), want, kTol, kTol, what + " (Inf)");
  }
  const Runner runner_;
  const Runner reference_{"reference", "avx2", 2};
};

INSTANTIATE_TEST_SUITE_P(Backends, Conformance, ::testing::ValuesIn(targets()),
                         [](const auto& info) {
                           return info.param.backend + "_" + info.param.isa;
                         });

std::string text(const char* name, int64_t value) {
  return name + std::to_string(value);
}

// Also bug: any ratio of query to KV heads, in prefill and decode.
TEST_P(Conformance, EveryHeadRatio) {
  for (int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 20, 24, 32, 64, 100, 130}) {
    const Shape shape{.q_heads = 2 * group, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
    check(shape, {{3, 37, 1}, {1, 1, 2}}, text("prefill, group ", group));
    check(shape, {{1, 70, 3}, {1, 16, 4}}, text("decode, group ", group), Phase::kDecode);
  }
}

TEST_P(Conformance, EveryPageSizeAndLengthAroundItsEdges) {
  for (int page : {1, 2, 16, 32, 64, 128}) {
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
}

TEST_P(Conformance, LongContextsAcrossSplits) {
  const Shape shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
  for (int len : {511, 512, 513, 1024, 1025, 2100}) {
    check(shape, {{1, len, 1}}, text("decode ", len), Phase::kDecode);
    check(shape, {{7, len, 1}, {1, 3, 2}}, text("extend ", len));
  }
}

TEST_P(Conformance, KvTypesOrdersAndOutputTypes) {
  for (DType kv : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (kv::PageOrder order : {kv::PageOrder::kHeadMajor, kv::PageOrder::kTokenMajor}) {
      const Shape shape{
          .q_heads = 6, .kv_heads = 2, .qk_dim = 24, .v_dim = 20, .kv_dtype = kv, .order = order};
      const std::vector<Seq> seqs = {{40, 100, 1}, {1, 33, 2}};
      check(shape, seqs, tensor::dtype_name(kv));
      const Problem problem(shape, seqs);
      const Output want = reference_.run(problem);
      for (DType out : {DType::kBF16, DType::kF16}) {
        Output got = runner_.run(problem, Phase::kPrefill, problem.layer(), out);
        expect_close(got, want, 1e-4, out == DType::kBF16 ? 0x1p-8 : 0x1p-11, "output type");
      }
    }
  }
}

TEST_P(Conformance, WindowSoftCapAndSinks) {
  const Shape shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
  const std::vector<Seq> seqs = {{70, 70, 1}, {5, 600, 2}, {1, 200, 3}, {100, 700, 4}, {1, 1, 5}};
  const std::vector<float> sinks = {-3.0f, 0.0f, 1.5f, 8.0f, -80.0f, 2.0f};
  LayerParams layer = Problem(shape, seqs, Fill::kZero).layer();
  layer.scale = 1.3f;
  for (int window : {0, 1, 17, 64, 128, 129, 1000}) {
    for (float cap : {0.0f, 5.0f}) {
      for (const float* s : {static_cast<const float*>(nullptr), sinks.data()}) {
        layer.window = window;
        layer.soft_cap = cap;
        layer.sinks = s;
        check(shape, seqs,
              text("window ", window) + (cap > 0 ? ", cap" : "") + (s ? ", sinks" : ""),
              Phase::kPrefill, &layer);
      }
    }
  }
  Shape open = shape;
  open.causal = false;
  check(open, seqs, "not causal", Phase::kPrefill, &layer);
}

TEST_P(Conformance, TreeMask) {
  const Shape shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
  // Node i's parent is parents[i]; a node sees its ancestors and itself.
  const auto words = [](const std::vector<int>& parents) {
    std::vector<uint64_t> w(parents.size());
    for (size_t i = 0; i < parents.size(); ++i)
      w[i] = (uint64_t{1} << i) | (parents[i] < 0 ? 0 : w[parents[i]]);
    return w;
  };
  std::vector<int> wide(64);
  for (int i = 0; i < 64; ++i) wide[i] = (i - 1) / 3;
  wide[0] = -1;
  auto all = words({-1, 0, 0, 1, 1, 2, 5});
  for (uint64_t w : words(wide)) all.push_back(w);
  all.push_back(1);
  const std::vector<Seq> seqs = {{7, 70, 1}, {64, 64 + 500, 2}, {1, 1, 3}};
  for (int window : {0, 2, 40}) {
    Problem clean(shape, seqs, Fill::kZero), nan(shape, seqs, Fill::kNaN, 2);
    clean.set_tree(all);
    nan.set_tree(all);
    LayerParams layer = clean.layer();
    layer.window = window;
    expect_close(runner_.run(nan, Phase::kVerify, layer),
                 reference_.run(clean, Phase::kVerify, layer), kTol, kTol,
                 text("tree, window ", window));
  }
  // A chain is plain causal attention.
  Problem chain(shape, {{7, 90, 1}}), causal(shape, {{7, 90, 1}});
  chain.set_tree(words({-1, 0, 1, 2, 3, 4, 5}));
  expect_close(runner_.run(chain, Phase::kVerify), runner_.run(causal, Phase::kVerify), 1e-6, 1e-6,
               "chain");
}

TEST_P(Conformance, EmptyBatch) {
  const Problem problem(Shape{}, {});
  const Output out = runner_.run(problem);
  EXPECT_TRUE(out.out.empty());
}

TEST_P(Conformance, LargeMixedBatch) {
  std::vector<Seq> seqs;
  for (uint32_t i = 0; i < 40; ++i)
    seqs.push_back({int32_t(i % 3 == 0 ? i % 29 : 1), int32_t(30 + (i * 37) % 300), i + 1});
  check({.q_heads = 3, .kv_heads = 3, .qk_dim = 16, .v_dim = 16}, seqs, "mixed");
}

// A row's bits depend on its own sequence only: not on batch mates, chunks, page size, threads.
TEST_P(Conformance, BatchInvariance) {
  if (!runner_.backend().capabilities().batch_invariant) GTEST_SKIP();
  const int total = 1200;
  for (int group : {1, 3}) {
    Shape shape{.q_heads = 2 * group, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
    const int64_t row = shape.q_heads * shape.v_dim;
    LayerParams layer = Problem(shape, {{1, 1, 1}}).layer();
    for (int window : {0, 100}) {
      layer.window = window;
      const Output whole = runner_.run(Problem(shape, {{total, total, 9}}), Phase::kPrefill, layer);
      const auto part = [&](int begin, int count) {
        Output o;
        o.out.assign(whole.out.begin() + begin * row, whole.out.begin() + (begin + count) * row);
        o.lse.assign(whole.lse.begin() + begin * shape.q_heads,
                     whole.lse.begin() + (begin + count) * shape.q_heads);
        return o;
      };
      // values() fills rows in order, so a shorter sequence of this seed is a prefix of a longer
      // one.
      for (int len : {1, 64, 65, 300, 511, 512, 513, 777, total}) {
        for (int page : {1, 16, 64}) {
          shape.page_size = page;
          const int chunk = std::min(len, 70);
          expect_same_bits(runner_.run(Problem(shape, {{1, len, 9}}), Phase::kDecode, layer),
                           part(len - 1, 1), text("decode of ", len));
          const Problem mixed(shape, {{chunk, len, 9}, {3, 900, 8}, {1, 40, 7}});
          Output got = runner_.run(mixed, Phase::kPrefill, layer);
          got.out.resize(chunk * row);
          got.lse.resize(chunk * shape.q_heads);
          expect_same_bits(got, part(len - chunk, chunk), text("chunk ending at ", len));
        }
      }
      shape.page_size = 16;
      const Runner single(GetParam().backend, GetParam().isa, 1);
      expect_same_bits(single.run(Problem(shape, {{1, total, 9}}), Phase::kDecode, layer),
                       part(total - 1, 1), "one thread");
    }
  }
}

// Attention over [0, n) merged with attention over [n, end) is attention over all.
TEST_P(Conformance, PartialsMergeByLse) {
  const Shape shape{
      .q_heads = 4, .kv_heads = 2, .qk_dim = 16, .v_dim = 16, .page_size = 1, .causal = false};
  const int total = 150, q_len = 4;
  const Problem all(shape, {{q_len, total, 1}});
  const LayerParams layer = all.layer();
  const Output want = runner_.run(all, Phase::kPrefill, layer);
  const auto k = Problem::values(1, 0, total, 2 * 16), v = Problem::values(1, 1, total, 2 * 16);
  for (int cut : {0, 1, 64, 149, 150}) {
    std::vector<Output> parts;
    for (auto [begin, end] : {std::pair{0, cut}, std::pair{cut, total}}) {
      Problem p(shape, {{q_len, end - begin, 77}});
      p.set_q(all.q());
      for (int i = begin; i < end; ++i) {
        for (int h = 0; h < 2; ++h) {
          for (int d = 0; d < 16; ++d) {
            p.poke(0, i - begin, h, d, false, k[(i * 2 + h) * 16 + d]);
            p.poke(0, i - begin, h, d, true, v[(i * 2 + h) * 16 + d]);
          }
        }
      }
      parts.push_back(runner_.run(p, Phase::kPrefill, layer));
    }
    const Partial partials[2] = {{parts[0].out.data(), parts[0].lse.data()},
                                 {parts[1].out.data(), parts[1].lse.data()}};
    Output merged{std::vector<float>(want.out.size()), std::vector<float>(want.lse.size())};
    merge_partials(partials, 2, q_len, 4, 16, merged.out.data(), merged.lse.data());
    expect_close(merged, want, kTol, kTol, text("cut at ", cut));
  }
}

}  // namespace
}  // namespace attune::attention::test
