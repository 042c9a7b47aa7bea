#include "ops/gemm/cpu/linear.h"

#include <algorithm>

#include "base/check.h"
#include "ops/gemm/cpu/kernels.h"
#include "ops/gemm/gemm.h"

namespace attune::ops::cpu {
namespace {

using gemm::kBlock;
using gemm::Kernels;
using gemm::kPanel;
using gemm::Layout;
using gemm::Product;

// Up to so many rows the fused kernels win; above, it pays to decode a stretch of weights once for
// all rows. Measured: docs/kernels-cpu.md.
constexpr int32_t kFusedMost = 12;
// Sums of x per 32 k, on the caller's stack: 128 KiB. Calls with more rows are cut.
constexpr int64_t kSums = 16 * (gemm::kMaxK / kBlock);
static_assert(kFusedMost <= 16);
// Rows of one piece of work: their x stays in L2 while pairs of panels pass by.
constexpr int64_t kTiledRows = 128;
// Weights of one piece of fused work.
constexpr int64_t kFusedBytes = 16 << 10;

// What differs between activation types.
struct Kind {
  const Kernels& kernels;
  void (*block_sums)(const void* x, int32_t k, float* sums);
  int64_t x_bytes;  // of an element
  bool tiled_sums;  // whether `tiled` wants x_sums too
};

Product make_product(const LinearParams& p) {
  const PackedWeight& w = *p.weight;
  ATTUNE_CHECK(p.x_dtype == w.act);
  const Layout layout = static_cast<Layout>(w.layout);
  return {.weight = w.data.as<const uint8_t>(),
          .panel_bytes = gemm::panel_bytes(layout, w.k),
          .n = w.n,
          .k = w.k,
          .m = p.m,
          .x = p.x,
          .ldx = p.ldx,
          .y = p.y,
          .ldy = p.ldy,
          .bias = p.bias,
          .accumulate = p.accumulate,
          .x_sums = nullptr};
}

void sum_rows(const Product& p, const Kind& kind, int64_t begin, int64_t end, float* sums) {
  for (int64_t r = begin; r < end; ++r)
    kind.block_sums(static_cast<const char*>(p.x) + r * p.ldx * kind.x_bytes, p.k,
                    sums + r * (p.k / kBlock));
}

void fused(const Product& p, const Kernels& kernels, base::ThreadPool& pool) {
  const int64_t panels = (p.n + kPanel - 1) / kPanel;
  const int64_t piece = std::clamp<int64_t>(kFusedBytes / p.panel_bytes, 1,
                                            std::max<int64_t>(1, panels / (pool.size() * 4)));
  pool.parallel_for(panels, piece,
                    [&](int64_t begin, int64_t end) { kernels.fused(p, begin, end); });
}

void tiled(const Product& p, const Kernels& kernels, base::ThreadPool& pool) {
  const int64_t pairs = (p.n + 2 * kPanel - 1) / (2 * kPanel);
  const int64_t row_pieces = (p.m + kTiledRows - 1) / kTiledRows;
  pool.parallel_for(pairs * row_pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t pair = i % pairs, piece = i / pairs;
      kernels.tiled(p, pair, pair + 1, p.m * piece / row_pieces, p.m * (piece + 1) / row_pieces);
    }
  });
}

// At most kSums / (k / 32) rows if sums are wanted.
void multiply(Product p, const Kind& kind, bool few, bool want_sums, base::ThreadPool& pool) {
  alignas(64) float sums[kSums];
  if (want_sums) {
    if (few) {
      sum_rows(p, kind, 0, p.m, sums);
    } else {
      pool.parallel_for(p.m, 16,
                        [&](int64_t begin, int64_t end) { sum_rows(p, kind, begin, end, sums); });
    }
    p.x_sums = sums;
  }
  if (few) {
    fused(p, kind.kernels, pool);
  } else {
    tiled(p, kind.kernels, pool);
  }
}

void linear(const LinearParams& params, Stream& stream, const Kind& kind) {
  if (params.m <= 0) return;
  const Product whole = make_product(params);
  ATTUNE_CHECK(kind.kernels.tiled != nullptr);  // the weight was packed for another level
  const bool quantised = gemm::spec(static_cast<Layout>(params.weight->layout)).bits != 0;
  const bool few = whole.m <= kFusedMost && !params.deterministic;
  const bool want_sums = quantised && (few || kind.tiled_sums);
  const int64_t most = want_sums ? kSums / (whole.k / kBlock) : whole.m;
  for (int64_t row = 0; row < whole.m; row += most) {
    Product p = whole;
    p.m = static_cast<int32_t>(std::min<int64_t>(most, whole.m - row));
    p.x = static_cast<const char*>(whole.x) + row * whole.ldx * kind.x_bytes;
    p.y = whole.y + row * whole.ldy;
    multiply(p, kind, few, want_sums, stream.pool());
  }
}

Layout layout_of(const LinearParams& p) {
  return static_cast<Layout>(p.weight->layout);
}

}  // namespace

void linear_avx2(const LinearParams& p, Stream& stream) {
  linear(p, stream, {gemm::avx2_kernels(layout_of(p)), gemm::block_sums, 4, false});
}

void linear_avx512(const LinearParams& p, Stream& stream) {
  linear(p, stream, {gemm::avx512_kernels(layout_of(p)), gemm::block_sums, 4, false});
}

void linear_avx512_bf16(const LinearParams& p, Stream& stream) {
  if (p.weight->act != DType::kBF16) return linear_avx512(p, stream);
  linear(p, stream, {gemm::avx512_bf16_kernels(layout_of(p)), gemm::block_sums_bf16, 2, true});
}

}  // namespace attune::ops::cpu
