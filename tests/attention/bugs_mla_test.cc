// Public bug reports of kind E (latent attention), each as its own small case.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "attention/merge.h"
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
    std::vector<Partial> partials;
    for (const Output& part : parts) partials.push_back({part.out.data(), part.lse.data()});
    Output all = parts[0];
    merge_partials(partials.data(), static_cast<int>(partials.size()), p.tokens(),
                   p.shape().q_heads, p.shape().v_dim, all.out.data(), all.lse.data());
    return all;
  }
};
using BugE01 = MlaBug;
using BugE02 = MlaBug;

using BugE09 = MlaBug;

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

// A pool of 40,000 pages of which only the request's can be touched at all: any pass over the pool
// would fault. Nor does the workspace grow with it.
TEST_P(BugE09, ThePoolBesideARequestIsNeverTouched) {
  if (!serves(absorbed(16, 512, 64), Phase::kDecode)) return;
  const kv::KvGeometry g{{1, 576, 512, tensor::DType::kF32, true}, 1, 16};
  const int64_t slots = 40000, piece = g.piece_bytes();
  ASSERT_EQ(piece % getpagesize(), 0);
  char* pool = static_cast<char*>(
      mmap(nullptr, slots * piece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(pool, MAP_FAILED);
  const std::vector<int32_t> mine = {39998, 7, 20000};
  const int32_t len = 41;
  const auto rows = Problem::values(1, 0, len, 576);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(mprotect(pool + mine[i] * piece, piece, PROT_READ | PROT_WRITE), 0);
    for (int t = 0; t < 16 && i * 16 + t < len; ++t)
      std::memcpy(pool + mine[i] * piece + t * 2304, rows.data() + (i * 16 + t) * 576, 2304);
  }
  const Problem small(absorbed(16, 512, 64), {{1, len, 1}});
  const Output want = runner_.run(small, Phase::kDecode);

  Batch batch = small.batch(Phase::kDecode);
  batch.page_slots = mine.data();
  Limits limits = small.limits(2);
  const int64_t bytes = runner_.backend().workspace_bytes(limits);
  limits.num_slots = slots;
  EXPECT_EQ(runner_.backend().workspace_bytes(limits), bytes);
  std::vector<char> workspace(bytes + 64);
  const auto plan = runner_.backend().make_plan(limits, workspace.data());
  ASSERT_TRUE(runner_.backend().plan(batch, *plan, runner_.stream()).ok());
  Output got{std::vector<float>(16 * 512), std::vector<float>(16)};
  const Io io{.q = small.q().data(),
              .q_stride = 16 * 576,
              .out = got.out.data(),
              .out_stride = 16 * 512,
              .lse = got.lse.data()};
  const auto view = kv::make_view(g, pool, static_cast<int32_t>(slots));
  runner_.stream().launch([&] {
    runner_.backend().plan_on(*plan, runner_.stream());
    runner_.backend().run(*plan, small.layer(), view, io, runner_.stream());
  });
  runner_.stream().synchronize();
  munmap(pool, slots * piece);
  expect_same_bits(got, want, "in a large pool");
}
ATTUNE_SUITE(BugE09);

}  // namespace
}  // namespace attune::attention::test
