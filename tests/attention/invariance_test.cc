// Backends that call themselves batch-invariant: a row's bits depend on its own sequence only.
#include <gtest/gtest.h>

#include <algorithm>

#include "suite.h"

namespace attune::attention::test {
namespace {

class Invariance : public Suite {
 protected:
  // One sequence of `total` keys in one call, to be compared with parts of it in other calls.
  struct Whole {
    Shape shape;
    LayerParams layer;
    int total;
    Output output;
    // Rows [begin, begin + count).
    Output part(int begin, int count) const {
      const int64_t row = int64_t{shape.q_heads} * shape.v_dim, heads = shape.q_heads;
      return {{output.out.begin() + begin * row, output.out.begin() + (begin + count) * row},
              output.lse.empty()
                  ? std::vector<float>()
                  : std::vector<float>(output.lse.begin() + begin * heads,
                                       output.lse.begin() + (begin + count) * heads)};
    }
  };
  static constexpr uint32_t kSeed = 9;

  Whole whole_of(const Shape& shape, int total, int window) const {
    LayerParams layer = Problem(shape, {}).layer();
    layer.window = window;
    return {shape, layer, total,
            runner_.run(Problem(shape, {{total, total, kSeed}}), Phase::kPrefill, layer)};
  }

  // The last `count` of the first `len` tokens, with batch mates around it.
  void expect_chunk(const Runner& runner, const Whole& whole, const Shape& shape, int count,
                    int len, Phase phase, const std::string& what) const {
    // values() fills rows in order, so a shorter sequence of a seed is a prefix of a longer one.
    const int mates = phase == Phase::kDecode ? 1 : 3;
    const Problem mixed(shape, {{mates, 70, 8}, {count, len, kSeed}, {1, 40, 7}}, Fill::kNaN, len);
    Output got = runner.run(mixed, phase, whole.layer);
    const int64_t row = int64_t{shape.q_heads} * shape.v_dim, heads = shape.q_heads;
    got.out = {got.out.begin() + mates * row, got.out.begin() + (mates + count) * row};
    if (!got.lse.empty())
      got.lse = {got.lse.begin() + mates * heads, got.lse.begin() + (mates + count) * heads};
    expect_same_bits(got, whole.part(len - count, count), what);
    const Problem alone(shape, {{count, len, kSeed}});
    expect_same_bits(runner.run(alone, phase, whole.layer), whole.part(len - count, count),
                     what + ", alone");
  }

  // Over batch mates, phases, chunks, where a prefix hit begins, page sizes and threads.
  void check_shape(const Shape& wanted, const std::vector<int>& lengths, int window) {
    if (!caps().batch_invariant) return skip_undeclared("batch_invariant");
    Shape shape = adapt(wanted);
    if (!serves(shape)) return;
    const int total = *std::max_element(lengths.begin(), lengths.end());
    const Whole whole = whole_of(shape, total, window);
    const bool rows = reads_rows(shape.path);
    for (int len : lengths) {
      for (int page : {1, 16, 64}) {
        if (!serves_page(page) || (rows && page > 1)) continue;
        shape.page_size = page;
        const std::string what = text("length ", len) + text(", page ", page);
        for (int count : {1, 2, 70})
          if (count <= len)
            expect_chunk(runner_, whole, shape, count, len, Phase::kPrefill,
                         what + text(", chunk of ", count));
        if (rows) continue;
        expect_chunk(runner_, whole, shape, 1, len, Phase::kDecode, what + ", decode");
        expect_chunk(runner_, whole, shape, std::min(len, 4), len, Phase::kVerify,
                     what + ", verify");
      }
    }
    shape = whole.shape;
    for (int threads : {1, 3, 8}) {
      if (runner_.on_gpu()) break;
      const Runner other(GetParam().backend, GetParam().isa, threads);
      expect_chunk(other, whole, shape, 1, total, rows ? Phase::kPrefill : Phase::kDecode,
                   text("threads: ", threads));
      expect_chunk(other, whole, shape, 9, total, Phase::kPrefill, text("threads: ", threads));
    }
  }
};
ATTUNE_SUITE(Invariance);

// The reference is slow on a CPU, and has nothing there that could vary.
std::vector<int> lengths(const Runner& runner) {
  if (runner.backend().capabilities().name == "reference" && !runner.on_gpu()) return {65, 130};
  return {1, 64, 65, 511, 513, 777, 1200};
}

TEST_P(Invariance, Mha) {
  const Shape shape{.q_heads = 2, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
  for (int window : {0, 100}) check_shape(shape, lengths(runner_), window);
}

TEST_P(Invariance, Gqa) {
  const Shape shape{.q_heads = 6, .kv_heads = 2, .qk_dim = 16, .v_dim = 16};
  for (int window : {0, 100}) check_shape(shape, lengths(runner_), window);
}

TEST_P(Invariance, Absorbed) {
  check_shape(absorbed(16, 16, 8), lengths(runner_), 0);
  check_shape(absorbed(16, 16, 8), lengths(runner_), 100);
}

// Of MLA's 128 heads two tiles are made; in float16 rows are converted first.
TEST_P(Invariance, AbsorbedAtModelDims) {
  if (caps().name == "reference" && !runner_.on_gpu())
    GTEST_SKIP() << "covered by the small shapes";
  Shape shape = absorbed(128, 512, 64);
  shape.kv_dtype = tensor::DType::kF16;
  check_shape(shape, {65, 130}, 0);
  check_shape(absorbed(16, 512, 64), {64, 530}, 0);
}

TEST_P(Invariance, Ragged) {
  check_shape(ragged(2, 24, 16), lengths(runner_), 0);
}

}  // namespace
}  // namespace attune::attention::test
