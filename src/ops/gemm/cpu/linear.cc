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
// A share of a group's item is no smaller, some 10 us of one core.
constexpr int64_t kShareMacs = 200'000;

// What differs between activation types.
struct Kind {
  const Kernels& kernels;
  void (*block_sums)(const void* x, int32_t k, float* sums);
  int64_t x_bytes;  // of an element
  bool tiled_sums;  // whether `tiled` wants x_sums too
};

Product make_product(const LinearParams& p) {
  const PackedWeight& w = *p.weight;
  ATTUNE_CHECK(p.x_dtype == w.act && p.y_dtype == DType::kF32);
  const Layout layout = static_cast<Layout>(w.layout);
  return {.weight = w.data.as<const uint8_t>(),
          .panel_bytes = gemm::panel_bytes(layout, w.k),
          .n = w.n,
          .k = w.k,
          .m = p.m,
          .x = p.x,
          .ldx = p.ldx,
          .y = static_cast<float*>(p.y),
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

// One share of an item's work: of its panels when its rows are few, else of its (piece of rows,
// pair of panels)s. Sums of x are made by each share anew; they cost little beside 16 k's products.
void multiply_share(const LinearParams& params, const Kind& kind, int64_t share, int64_t shares) {
  const Product whole = make_product(params);
  ATTUNE_CHECK(kind.kernels.tiled != nullptr);
  const bool quantised = gemm::spec(static_cast<Layout>(params.weight->layout)).bits != 0;
  const int64_t sum_rows_most = kSums / std::max(1, whole.k / kBlock);
  const bool few = whole.m <= std::min<int64_t>(kFusedMost, sum_rows_most) && !params.deterministic;
  const bool want_sums = quantised && (few || kind.tiled_sums);
  const int64_t most = few ? whole.m : std::min(kTiledRows, want_sums ? sum_rows_most : kTiledRows);
  const int64_t step = few ? kPanel : 2 * kPanel;
  const int64_t columns = (whole.n + step - 1) / step;
  const int64_t total = columns * ((whole.m + most - 1) / most);
  const int64_t end = total * (share + 1) / shares;
  alignas(64) float sums[kSums];
  for (int64_t i = total * share / shares; i < end;) {
    const int64_t row = i / columns * most, column = i % columns;
    const int64_t column_end = std::min(columns, column + end - i);
    Product p = whole;
    p.m = static_cast<int32_t>(std::min(most, whole.m - row));
    p.x = static_cast<const char*>(whole.x) + row * whole.ldx * kind.x_bytes;
    p.y = whole.y + row * whole.ldy;
    if (want_sums) {
      sum_rows(p, kind, 0, p.m, sums);
      p.x_sums = sums;
    }
    if (few) {
      kind.kernels.fused(p, column, column_end);
    } else {
      kind.kernels.tiled(p, column, column_end, 0, p.m);
    }
    i += column_end - column;
  }
}

// Every item is cut into as many shares, enough that the largest is spread over all threads; those
// of small items are empty.
template <typename KindOf>
void linear_group(const LinearParams* items, int32_t count, Stream& stream, KindOf kind_of) {
  int64_t work = 0, most = 0;  // multiply-adds
  for (int32_t i = 0; i < count; ++i) {
    const int64_t macs = int64_t{items[i].m} * items[i].weight->n * items[i].weight->k;
    work += macs;
    most = std::max(most, macs);
  }
  const int64_t target = std::max<int64_t>(kShareMacs, work / (stream.pool().size() * 8));
  const int64_t shares = std::clamp<int64_t>(most / target, 1, 64);
  stream.pool().parallel_for(count * shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const LinearParams& item = items[i / shares];
      if (item.m > 0) multiply_share(item, kind_of(item), i % shares, shares);
    }
  });
}

Layout layout_of(const LinearParams& p) {
  return static_cast<Layout>(p.weight->layout);
}

Kind avx2_kind(const LinearParams& p) {
  return {gemm::avx2_kernels(layout_of(p)), gemm::block_sums, 4, false};
}

Kind avx512_kind(const LinearParams& p) {
  return {gemm::avx512_kernels(layout_of(p)), gemm::block_sums, 4, false};
}

Kind avx512_bf16_kind(const LinearParams& p) {
  if (p.weight->act != DType::kBF16) return avx512_kind(p);
  return {gemm::avx512_bf16_kernels(layout_of(p)), gemm::block_sums_bf16, 2, true};
}

}  // namespace

void linear_avx2(const LinearParams& p, Stream& stream) {
  linear(p, stream, avx2_kind(p));
}

void linear_avx512(const LinearParams& p, Stream& stream) {
  linear(p, stream, avx512_kind(p));
}

void linear_avx512_bf16(const LinearParams& p, Stream& stream) {
  linear(p, stream, avx512_bf16_kind(p));
}

void linear_group_avx2(const LinearParams* items, int32_t count, Stream& stream) {
  linear_group(items, count, stream, avx2_kind);
}

void linear_group_avx512(const LinearParams* items, int32_t count, Stream& stream) {
  linear_group(items, count, stream, avx512_kind);
}

void linear_group_avx512_bf16(const LinearParams* items, int32_t count, Stream& stream) {
  linear_group(items, count, stream, avx512_bf16_kind);
}

}  // namespace attune::ops::cpu
