// Public bug reports of kind E (latent attention), each as its own small case.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "suite.h"

namespace attune::attention::test {
namespace {

class MlaBug : public Suite {
 protected:
  using Ranges = std::vector<std::pair<int32_t, int32_t>>;
  // Parts of the problem, merged.
  Output merged(Problem& p, const std::vector<std::pair<Ranges, bool>>& calls) {
    std::vector<Output> parts;
    for (const auto& [ranges, causal] : calls) {
      p.set_keys(ranges, causal);
      parts.push_back(runner_.run(p));
    }
    return merge(parts, p.shape().q_heads, p.shape().v_dim);
  }
};
using BugE01 = MlaBug;
using BugE02 = MlaBug;

// A long prefix merged with a short suffix is one call; the LSE is the natural logarithm.
TEST_P(BugE01, LseIsNaturalSoThatAPrefixMergesRightly) {
  const Shape shape = adapt(ragged(2, 24, 16, Path::kChunked));
  if (!serves(shape) || !caps().lse_out) return;
  Problem p(shape, {{64, 3136, 1}});
  const Output want = reference_.run(p);
  const Output got = merged(
      p, {{Ranges{{3072, 3136}}, true}, {Ranges{{0, 1536}}, false}, {Ranges{{1536, 3072}}, false}});
  expect_close(got, want, tolerance(shape), tolerance(shape), "merged");
  // Of n equal keys: the score plus ln n, whatever else a backend computes with.
  Problem equal(shape, {{1, 100, 1}});
  std::vector<float> q(equal.q().size(), 0.0f);
  equal.set_q(std::move(q));
  const Output flat = runner_.run(equal);
  for (float lse : flat.lse) EXPECT_NEAR(lse, std::log(100.0), 1e-5);
}
ATTUNE_SUITE(BugE01);

// Chunks that hold nothing for half of the sequences, first, last and all.
TEST_P(BugE02, ChunksWithoutKeysForSomeQueries) {
  const Shape shape = adapt(ragged(2, 24, 16, Path::kChunked));
  if (!serves(shape) || !caps().lse_out) return;
  Problem p(shape, {{3, 43, 1}, {4, 4, 2}, {2, 72, 3}, {5, 5, 4}});
  const Output want = reference_.run(p);
  const Ranges fresh = {{40, 43}, {0, 4}, {70, 72}, {0, 5}},
               none = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};
  const Ranges first = {{0, 40}, {0, 0}, {0, 10}, {0, 0}},
               second = {{0, 0}, {0, 0}, {10, 70}, {0, 0}};
  const Output got =
      merged(p, {{fresh, true}, {first, false}, {none, false}, {second, false}, {none, false}});
  expect_close(got, want, tolerance(shape), tolerance(shape), "merged");
  p.set_keys(none, false);
  const Output empty = runner_.run(p);
  for (float x : empty.out) EXPECT_EQ(x, 0.0f);
  for (float x : empty.lse) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
}
ATTUNE_SUITE(BugE02);

// What a latent row takes is the layer's own: bytes of the pool and strides of the view agree.
TEST(BugE08, LatentRowsTakeTheirLayersBytes) {
  struct Row {
    tensor::DType dtype;
    int64_t bytes;
  };
  for (const Row& row : {Row{tensor::DType::kF32, 2304}, Row{tensor::DType::kBF16, 1152},
                         Row{tensor::DType::kF16, 1152}, Row{tensor::DType::kF8E4M3, 576}}) {
    const kv::KvGeometry g{{1, 576, 512, row.dtype, true}, 2, 64};
    EXPECT_EQ(g.piece_bytes(), 64 * row.bytes);
    EXPECT_EQ(g.page_bytes(), 2 * 64 * row.bytes);
    const kv::PagedKvView view = kv::make_view(g, nullptr, 3);
    EXPECT_EQ(view.k_token_stride, row.bytes);
    EXPECT_EQ(view.v_token_stride, row.bytes);
    EXPECT_EQ(view.v_offset, 0);
    EXPECT_EQ(view.page_stride, 64 * row.bytes);
  }
}

}  // namespace
}  // namespace attune::attention::test
