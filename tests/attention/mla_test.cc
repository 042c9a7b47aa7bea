// MLA's two kinds of calls, on every backend that declares them: latents as they are (absorbed),
// and up-projected rows beside the pool (ragged, one_shot, chunked).
#include <gtest/gtest.h>

#include "attention/route.h"
#include "suite.h"

namespace attune::attention::test {
namespace {

using tensor::DType;

class Absorbed : public Suite {};
class Ragged : public Suite {};
ATTUNE_SUITE(Absorbed);
ATTUNE_SUITE(Ragged);

TEST_P(Absorbed, EveryPhaseAtModelDims) {
  for (int heads : {16, 128}) {
    for (Phase phase : kAllPhases) {
      const int more = phase == Phase::kDecode ? 1 : heads == 16 ? 7 : 2;
      check(absorbed(heads, 512, 64), {{more, 70, 1}, {1, 1, 2}, {0, 20, 3}, {1, 129, 4}},
            phase_name(phase) + text(", heads ", heads), phase);
    }
  }
}

TEST_P(Absorbed, EveryHeadCountAndDim) {
  const std::vector<Seq> seqs = {{3, 37, 1}, {1, 66, 2}};
  for (int heads : {1, 2, 3, 5, 16, 64, 96, 97, 128, 192, 200})
    check(absorbed(heads, 16, 8), seqs, text("heads ", heads));
  for (int latent : {4, 8, 20, 32, 56, 64})
    for (int rope : {0, 3, 4, 8})
      check(absorbed(5, latent, rope), seqs, text("latent ", latent) + text(", rope ", rope));
}

TEST_P(Absorbed, EveryPageSizeAndLengthAroundItsEdges) {
  for (int page : {1, 16, 32, 64}) {
    if (!serves_page(page)) continue;
    Shape shape = absorbed(16, 16, 8);
    shape.page_size = page;
    std::vector<Seq> prefill, decode;
    uint32_t seed = 1;
    for (int len : {1, page - 1, page, page + 1, 63, 64, 65, 513}) {
      prefill.push_back({std::min(len, 9), len, ++seed});
      decode.push_back({1, len, ++seed});
    }
    decode.push_back({0, 0, 5});
    decode.push_back({1, 0, 6});
    check(shape, prefill, text("prefill, page ", page));
    check(shape, decode, text("decode, page ", page), Phase::kDecode);
  }
}

TEST_P(Absorbed, KvTypes) {
  for (DType kv : caps().kv_dtypes) {
    Shape small = absorbed(6, 24, 8), whole = absorbed(16, 512, 64);
    small.kv_dtype = whole.kv_dtype = kv;
    check(small, {{20, 100, 1}, {1, 33, 2}}, tensor::dtype_name(kv));
    check(whole, {{1, 70, 1}}, tensor::dtype_name(kv), Phase::kDecode);
  }
}

TEST_P(Absorbed, LongContextsAcrossSplits) {
  for (int len : {511, 512, 513, 1025, 2100}) {
    check(absorbed(16, 16, 8), {{1, len, 1}}, text("decode ", len), Phase::kDecode);
    check(absorbed(16, 16, 8), {{7, len, 1}, {1, 3, 2}}, text("extend ", len));
  }
}

TEST_P(Absorbed, TreesAndWindows) {
  auto words = tree_words({-1, 0, 0, 1, 1, 2, 5});
  for (uint64_t w : tree_words({-1, 0, 1, 1, 0, 4, 4, 4, 2})) words.push_back(w);
  words.push_back(1);
  const std::vector<Seq> seqs = {{7, 70, 1}, {9, 9 + 130, 2}, {1, 1, 3}};
  for (const Shape& shape : {absorbed(16, 16, 8), absorbed(128, 12, 4)}) {
    LayerParams layer{.q_heads = shape.q_heads, .kv_heads = 1, .scale = 0.3f};
    for (int window : {0, 2, 40}) {
      layer.window = window;
      check(shape, seqs, text("tree, window ", window), Phase::kVerify, &layer, words);
      check(shape, seqs, text("causal, window ", window), Phase::kVerify, &layer);
    }
  }
  const Shape whole = absorbed(16, 512, 64);
  check(whole, {{7, 40, 1}}, "tree at model dims", Phase::kVerify, nullptr,
        tree_words({-1, 0, 0, 1, 1, 2, 5}));
}

TEST_P(Absorbed, SoftCapAndSinks) {
  const Shape shape = absorbed(4, 16, 8);
  const std::vector<float> sinks = {-3.0f, 0.0f, 1.5f, 8.0f};
  const LayerParams layer{
      .q_heads = 4, .kv_heads = 1, .scale = 1.3f, .soft_cap = 5.0f, .sinks = sinks.data()};
  check(shape, {{7, 70, 1}, {1, 600, 2}, {2, 0, 3}}, "cap and sinks", Phase::kPrefill, &layer);
}

TEST_P(Absorbed, EmptyBatch) {
  const Problem problem(adapt(absorbed(16, 16, 8)), {});
  if (!serves(problem.shape())) return;
  for (Phase phase : kAllPhases) {
    if (!serves(problem.shape(), phase)) continue;
    EXPECT_TRUE(runner_.run(problem, phase).out.empty());
  }
}

TEST_P(Absorbed, LargeMixedBatch) {
  std::vector<Seq> seqs;
  for (uint32_t i = 0; i < 30; ++i)
    seqs.push_back({int32_t(i % 3 == 0 ? i % 29 : 1), int32_t(30 + (i * 37) % 300), i + 1});
  check(absorbed(16, 16, 8), seqs, "mixed");
}

TEST_P(Ragged, EveryPathAtModelDims) {
  for (Path path : {Path::kRagged, Path::kOneShot, Path::kChunked}) {
    for (bool causal : {true, false}) {
      Shape shape = ragged(3, 192, 128, path);
      shape.causal = causal;
      check(shape, {{40, 40, 1}, {5, 100, 2}, {3, 0, 3}, {0, 7, 4}, {1, 65, 5}},
            path_name(path) + std::string(causal ? "" : ", not causal"));
    }
  }
}

TEST_P(Ragged, EveryLengthWhereverItsRowsBegin) {
  std::vector<Seq> seqs;
  uint32_t seed = 1;
  for (int len : {1, 2, 15, 16, 17, 63, 64, 65, 95, 96, 97, 129})
    seqs.push_back({len, len, ++seed});
  for (int q : {1, 5}) seqs.push_back({q, 530, ++seed});
  check(ragged(2, 24, 16), seqs, "tiny dims");
  for (int heads : {1, 2, 16, 128}) check(ragged(heads, 8, 4), {{3, 20, 1}, {2, 5, 2}}, "heads");
}

TEST_P(Ragged, TypesAndWindows) {
  LayerParams layer{.q_heads = 2, .kv_heads = 2, .scale = 0.4f};
  for (DType kv : caps().kv_dtypes) {
    Shape shape = ragged(2, 24, 16);
    shape.kv_dtype = kv;
    for (int window : {0, 30}) {
      layer.window = window;
      check(shape, {{40, 100, 1}, {1, 33, 2}}, tensor::dtype_name(kv), Phase::kPrefill, &layer);
    }
  }
}

// A prefix in chunks of any size, each seen whole, merged with the new tokens' causal part, is one
// call over all: also for sequences without a prefix, and those of which a chunk holds nothing.
TEST_P(Ragged, ChunksMergeToOneCall) {
  const Shape shape = adapt(ragged(3, 24, 16, Path::kChunked));
  const std::vector<Seq> seqs = {{5, 105, 1}, {7, 7, 2}, {1, 64, 3}, {20, 220, 4}, {0, 30, 5}};
  if (!serves(shape) || !caps().lse_out) return skip_undeclared("chunks");
  Problem p(shape, seqs);
  const Output want = reference_.run(p);
  expect_close(runner_.run(p), want, tolerance(shape), tolerance(shape), "one call");
  std::vector<int32_t> prefixes;
  std::vector<std::pair<int32_t, int32_t>> fresh;
  for (const Seq& s : seqs) {
    prefixes.push_back(s.kv_len - s.q_len);
    fresh.push_back({s.kv_len - s.q_len, s.kv_len});
  }
  for (int capacity : {1000, 200, 77, 64, 13}) {
    std::vector<Output> parts;
    p.set_keys(fresh, true);
    parts.push_back(runner_.run(p));
    for (const PrefixChunk& chunk : chunk_prefixes(prefixes, capacity)) {
      std::vector<std::pair<int32_t, int32_t>> ranges(seqs.size(), {0, 0});
      for (const PrefixChunk::Range& r : chunk.ranges) ranges[r.seq] = {r.begin, r.end};
      p.set_keys(ranges, false);
      parts.push_back(runner_.run(p));
    }
    expect_close(merge(parts, shape.q_heads, shape.v_dim), want, tolerance(shape), tolerance(shape),
                 text("capacity ", capacity));
  }
}

TEST_P(Ragged, EmptyBatch) {
  for (Path path : {Path::kRagged, Path::kOneShot, Path::kChunked}) {
    const Problem problem(adapt(ragged(2, 24, 16, path)), {});
    if (!serves(problem.shape())) continue;
    EXPECT_TRUE(runner_.run(problem).out.empty());
  }
}

}  // namespace
}  // namespace attune::attention::test
