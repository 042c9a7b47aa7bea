// The float32 kernels, written with V16 and compiled once per level. A level's unit includes this
// and returns float_kernels().
#pragma once

#include "ops/gemm/cpu/decode.h"
#include "ops/gemm/cpu/kernels.h"

namespace attune::ops::gemm {
#if defined(__AVX512F__)
inline namespace avx512 {
// 12 rows x 2 panels: 24 sums, 2 weights, x from memory (embedded broadcast).
inline constexpr int kTileRows = 12;
#else
inline namespace avx2 {
// 6 rows x 1 panel: 12 registers of sums, 2 of weights, 1 of x. Up to 3 rows take 2 panels, since
// 2 FMAs a cycle with a latency of 4 want at least 8 independent sums.
inline constexpr int kTileRows = 6;
#endif
// k of a stretch that is decoded at once: 2 panels are 72 KiB and stay in L2, or L1 for one panel.
inline constexpr int kStretch = 576;

// y[0, 16) at column n0 of one row.
ATTUNE_LANES void finish(const Product& p, int64_t row, int64_t n0, V16 sum, bool first) {
  float* y = p.y + row * p.ldy + n0;
  const int columns = p.n - n0 < kPanel ? static_cast<int>(p.n - n0) : kPanel;
  if (columns == kPanel) {
    if (first && p.bias) sum = add(sum, load(p.bias + n0));
    if (!first || p.accumulate) sum = add(sum, load(y));
    store(y, sum);
    return;
  }
  if (columns <= 0) return;
  if (first && p.bias) sum = add(sum, load_first(p.bias + n0, columns));
  if (!first || p.accumulate) sum = add(sum, load_first(y, columns));
  store_first(y, sum, columns);
}

template <Layout kLayout>
void gemv(const Product& p, int64_t begin, int64_t end) {
  using D = Decoder<kLayout>;
  const float* x = static_cast<const float*>(p.x);
  for (int64_t panel = begin; panel < end; ++panel) {
    const uint8_t* w = p.weight + panel * p.panel_bytes;
    V16 sum = zero();
    if constexpr (D::kSpec.bits == 0) {
      V16 part[4] = {zero(), zero(), zero(), zero()};
      int64_t i = 0;
      for (; i + 4 <= p.k; i += 4)
        for (int u = 0; u < 4; ++u) part[u] = fma(D::value(w, i + u), set1(x[i + u]), part[u]);
      for (; i < p.k; ++i) part[0] = fma(D::value(w, i), set1(x[i]), part[0]);
      sum = add(add(part[0], part[1]), add(part[2], part[3]));
    } else {
      for (int64_t b = 0; b < p.k / kBlock; ++b) {
        const float* xb = x + b * kBlock;
        V16 lo_sum = zero(), hi_sum = zero();
        D::codes(
            D::codes_of(w, b), [&](int j, V16 lo, V16 hi) __attribute__((always_inline)) {
              lo_sum = fma(lo, set1(xb[j]), lo_sum);
              hi_sum = fma(hi, set1(xb[16 + j]), hi_sum);
            });
        const Scales s = D::scales_of(w, b);
        if constexpr (D::kHasMin) sum = fma(s.m, set1(p.x_sums[b]), sum);
        if constexpr (D::kSpec.scales == 2) {
          sum = fma(s.d[0], lo_sum, fma(s.d[1], hi_sum, sum));
        } else {
          sum = fma(s.d[0], add(lo_sum, hi_sum), sum);
        }
      }
    }
    finish(p, 0, panel * kPanel, sum, true);
  }
}

// kRows rows by kPanels panels over `count` k; w[panel][k][16] with `step` floats between panels.
template <int kRows, int kPanels>
ATTUNE_LANES void tile(const Product& p, int64_t row, int64_t n0, const float* x, const float* w,
                       int64_t step, int64_t count, bool first) {
  V16 sum[kRows][kPanels];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < kPanels; ++c) sum[r][c] = zero();
  for (int64_t i = 0; i < count; ++i) {
    V16 weights[kPanels];
#pragma GCC unroll 2
    for (int c = 0; c < kPanels; ++c) weights[c] = load(w + c * step + i * kPanel);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V16 xr = set1(x[r * p.ldx + i]);
#pragma GCC unroll 2
      for (int c = 0; c < kPanels; ++c) sum[r][c] = fma(weights[c], xr, sum[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < kPanels; ++c) finish(p, row + r, n0 + c * kPanel, sum[r][c], first);
}

using Tile = void (*)(const Product&, int64_t row, int64_t n0, const float* x, const float* w,
                      int64_t step, int64_t count, bool first);

// Both panels of a pair.
template <int kRows>
__attribute__((noinline)) void pair_tile(const Product& p, int64_t row, int64_t n0, const float* x,
                                         const float* w, int64_t step, int64_t count, bool first) {
#if !defined(__AVX512F__)
  if constexpr (kRows > 3) {
    tile<kRows, 1>(p, row, n0, x, w, step, count, first);
    if (n0 + kPanel < p.n) tile<kRows, 1>(p, row, n0 + kPanel, x, w + step, step, count, first);
    return;
  }
#endif
  tile<kRows, 2>(p, row, n0, x, w, step, count, first);
}

inline constexpr Tile kTiles[] = {
    nullptr,      pair_tile<1>, pair_tile<2>, pair_tile<3>,  pair_tile<4>,  pair_tile<5>,
    pair_tile<6>,
#if defined(__AVX512F__)
    pair_tile<7>, pair_tile<8>, pair_tile<9>, pair_tile<10>, pair_tile<11>, pair_tile<12>,
#endif
};

// All rows [begin, end) in tiles of like height.
ATTUNE_LANES void tiles(const Product& p, int64_t begin, int64_t end, int64_t n0, int64_t k0,
                        const float* w, int64_t step, int64_t count) {
  const int64_t rows = end - begin;
  const int64_t pieces = (rows + kTileRows - 1) / kTileRows;
  const float* x = static_cast<const float*>(p.x) + k0;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t r0 = begin + rows * i / pieces, r1 = begin + rows * (i + 1) / pieces;
    kTiles[r1 - r0](p, r0, n0, x + r0 * p.ldx, w, step, count, k0 == 0);
  }
}

template <Layout kLayout>
void gemm(const Product& p, int64_t pair_begin, int64_t pair_end, int64_t row_begin,
          int64_t row_end) {
  alignas(64) float w[2 * kStretch * kPanel];
  // Equal stretches, fixed by k alone.
  const int64_t stretches = (p.k + kStretch - 1) / kStretch;
  const int64_t even = ((p.k + stretches - 1) / stretches + kBlock - 1) / kBlock * kBlock;
  const int64_t step = even * kPanel;
  for (int64_t pair = pair_begin; pair < pair_end; ++pair) {
    const int64_t n0 = pair * 2 * kPanel;
    const uint8_t* panel = p.weight + pair * 2 * p.panel_bytes;
    const bool both = n0 + kPanel < p.n;
    for (int64_t k0 = 0; k0 < p.k; k0 += even) {
      const int64_t count = p.k - k0 < even ? p.k - k0 : even;
      for (int c = 0; c < (both ? 2 : 1); ++c)
        Decoder<kLayout>::floats(panel + c * p.panel_bytes, k0, count, w + c * step);
      if (!both)
        for (int64_t i = 0; i < count * kPanel; ++i) w[step + i] = 0;
      tiles(p, row_begin, row_end, n0, k0, w, step, count);
    }
  }
}

template <Layout kLayout>
inline constexpr Kernels kKernels = {gemv<kLayout>, gemm<kLayout>};

ATTUNE_LANES const Kernels& float_kernels(Layout layout) {
  switch (layout) {
    case Layout::kF32:
      return kKernels<Layout::kF32>;
    case Layout::kF16:
      return kKernels<Layout::kF16>;
    case Layout::kBF16:
      return kKernels<Layout::kBF16>;
    case Layout::kQ4_0:
      return kKernels<Layout::kQ4_0>;
    case Layout::kQ4_1:
      return kKernels<Layout::kQ4_1>;
    case Layout::kQ5_0:
      return kKernels<Layout::kQ5_0>;
    case Layout::kQ5_1:
      return kKernels<Layout::kQ5_1>;
    case Layout::kQ8_0:
      return kKernels<Layout::kQ8_0>;
    case Layout::kQ4_K:
      return kKernels<Layout::kQ4_K>;
    case Layout::kQ5_K:
      return kKernels<Layout::kQ5_K>;
    case Layout::kQ6_K:
      return kKernels<Layout::kQ6_K>;
    default:
      break;
  }
  static constexpr Kernels kNone = {nullptr, nullptr};
  return kNone;
}

}  // inline namespace
}  // namespace attune::ops::gemm
