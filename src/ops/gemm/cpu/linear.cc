#include "ops/gemm/cpu/linear.h"

#include <algorithm>

#include "base/check.h"
#include "ops/gemm/cpu/kernels.h"
#include "ops/gemm/gemm.h"

namespace attune::ops::cpu {
namespace {

using gemm::Kernels;
using gemm::Layout;
using gemm::Product;

Product make_product(const LinearParams& p) {
  const PackedWeight& w = *p.weight;
  ATTUNE_CHECK(p.x_dtype == w.act);
  return {.weight = w.data.as<const uint8_t>(),
          .panel_bytes = gemm::spec(static_cast<Layout>(w.layout)).panel_bytes(w.k),
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

// Above this many rows it pays to decode a stretch of weights once for all of them; measured, see
// docs/kernels-cpu.md.
constexpr int32_t kFusedMost = 16;

// Pieces of about 16 KiB of weights, but several per thread.
int64_t panels_per_piece(const Product& p, int64_t panels, int threads) {
  return std::clamp<int64_t>((16 << 10) / p.panel_bytes, 1,
                             std::max<int64_t>(1, panels / (threads * 4)));
}

void fused(Product& p, const Kernels& kernels, Stream& stream) {
  alignas(64) float sums[kFusedMost * gemm::kMaxK / gemm::kBlock];  // 128 KiB of stack at most
  for (int32_t r = 0; r < p.m; ++r)
    gemm::block_sums(static_cast<const float*>(p.x) + r * p.ldx, p.k,
                     sums + r * (p.k / gemm::kBlock));
  p.x_sums = sums;
  const int64_t panels = (p.n + gemm::kPanel - 1) / gemm::kPanel;
  base::ThreadPool& pool = stream.pool();
  pool.parallel_for(panels, panels_per_piece(p, panels, pool.size()),
                    [&](int64_t begin, int64_t end) { kernels.fused(p, begin, end); });
}

void tiled(const Product& p, const Kernels& kernels, Stream& stream) {
  constexpr int64_t kRows = 128;  // their x stays in L2 while pairs of panels pass by
  const int64_t pairs = (p.n + 2 * gemm::kPanel - 1) / (2 * gemm::kPanel);
  const int64_t row_pieces = (p.m + kRows - 1) / kRows;
  stream.pool().parallel_for(pairs * row_pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t pair = i % pairs, piece = i / pairs;
      kernels.tiled(p, pair, pair + 1, p.m * piece / row_pieces, p.m * (piece + 1) / row_pieces);
    }
  });
}

void linear(const LinearParams& params, Stream& stream, const Kernels& kernels) {
  if (params.m <= 0) return;
  Product p = make_product(params);
  if (p.m <= kFusedMost && !params.deterministic) {
    fused(p, kernels, stream);
  } else {
    tiled(p, kernels, stream);
  }
}

}  // namespace

void linear_avx2(const LinearParams& p, Stream& stream) {
  linear(p, stream, gemm::avx2_kernels(static_cast<Layout>(p.weight->layout)));
}

void linear_avx512(const LinearParams& p, Stream& stream) {
  linear(p, stream, gemm::avx512_kernels(static_cast<Layout>(p.weight->layout)));
}

}  // namespace attune::ops::cpu
