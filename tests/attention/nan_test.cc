// What is no number shows in every row that sees it, output and LSE, and nowhere else: neither as a
// row that saw nothing, nor in the rows that share a tile with it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "suite.h"

namespace attune::attention::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class NaN : public Suite {
 protected:
  // Rows are (token, head) pairs: those of [row, row + rows) are NaN, the others have want's bits.
  void expect_rows(Output got, const Output& want, int64_t row, int64_t rows, const Shape& shape,
                   const std::string& what) const {
    const auto take = [&](std::vector<float>& all, const std::vector<float>& others,
                          int64_t width) {
      for (int64_t i = row * width; i < (row + rows) * width; ++i) {
        EXPECT_TRUE(std::isnan(all[i])) << what << ": " << all[i] << " in row " << i / width;
        all[i] = others[i];
      }
    };
    take(got.out, want.out, want.v_dim);
    if (caps().lse_out) take(got.lse, want.lse, 1);
    expect_same(got, want, shape, what + ", other rows");
  }
  std::string name(const Shape& shape, Phase phase, const LayerParams& layer) const {
    return path_name(shape.path) + std::string(", ") + phase_name(phase) +
           (layer.soft_cap > 0 ? ", soft cap" : "");
  }
  std::vector<Shape> shapes() const {
    return {adapt({.q_heads = 8, .kv_heads = 2, .qk_dim = 16, .v_dim = 16}),
            adapt(absorbed(16, 16, 8)), adapt(ragged(3, 24, 16))};
  }
};

// Of the second sequence's last token the last head's.
TEST_P(NaN, AQuerysIsItsRows) {
  if (caps().hides_nan) return skip_undeclared("that NaN stays NaN");
  const std::vector<Seq> prefill = {{40, 140, 1}, {5, 1100, 2}, {70, 70, 3}};
  const std::vector<Seq> decode = {{1, 70, 1}, {1, 1100, 2}, {1, 3, 3}};
  for (const Shape& shape : shapes())
    for (Phase phase : {Phase::kDecode, Phase::kPrefill})
      for (float soft_cap : {0.0f, 5.0f}) {
        if (reads_rows(shape.path) && phase == Phase::kDecode) continue;
        const std::vector<Seq>& seqs = phase == Phase::kDecode ? decode : prefill;
        Problem p(shape, seqs);
        LayerParams layer = p.layer();
        layer.soft_cap = soft_cap;
        if (!serves(shape, phase, layer)) continue;
        const Output want = runner_.run(p, phase, layer);
        const int64_t row = int64_t{seqs[0].q_len + seqs[1].q_len} * shape.q_heads - 1;
        std::vector<float> q = p.q();
        q[row * shape.qk_dim + shape.qk_dim / 2] = kNaN;
        p.set_q(q);
        expect_rows(runner_.run(p, phase, layer), want, row, 1, shape, name(shape, phase, layer));
      }
}

// The first KV head's last key, which is alone in its split on the CPU.
TEST_P(NaN, AKeysIsOfTheHeadsThatSeeIt) {
  if (caps().hides_nan) return skip_undeclared("that NaN stays NaN");
  for (const Shape& shape : shapes())
    for (float soft_cap : {0.0f, 5.0f}) {
      const Phase phase = reads_rows(shape.path) ? Phase::kPrefill : Phase::kDecode;
      Problem p(shape, {{1, 513, 1}, {1, 70, 2}});
      LayerParams layer = p.layer();
      layer.soft_cap = soft_cap;
      if (!serves(shape, phase, layer)) continue;
      const Output want = runner_.run(p, phase, layer);
      p.poke(0, 512, 0, shape.qk_dim - 1, false, kNaN);
      expect_rows(runner_.run(p, phase, layer), want, 0, shape.q_heads / shape.kv_heads, shape,
                  name(shape, phase, layer));
    }
}
ATTUNE_SUITE(NaN);

}  // namespace
}  // namespace attune::attention::test
