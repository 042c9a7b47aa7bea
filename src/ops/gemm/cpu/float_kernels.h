// The float32 kernels, written with V16 and compiled once per level. A level's unit includes this
// and returns float_kernels().
#pragma once

#include "ops/gemm/cpu/decode.h"
#include "ops/gemm/cpu/kernels.h"
#include "ops/gemm/cpu/tile_util.h"

namespace attune::ops::gemm {
#if defined(__AVX512F__)
inline namespace avx512 {
// 12 rows x 2 panels: 24 sums, 2 weights, x from memory (embedded broadcast).
inline constexpr int kTileRows = 12;
inline constexpr int kFirstRows = 8;     // of the tile that decodes
inline constexpr int kFusedRows = 8;     // of a fused kernel,
inline constexpr int kFusedTwoSums = 8;  // with two sums per block up to so many rows
#else
inline namespace avx2 {
// 6 rows x 1 panel: 12 registers of sums, 2 of weights, 1 of x. Up to 3 rows take 2 panels, since
// 2 FMAs a cycle with a latency of 4 want at least 8 independent sums.
inline constexpr int kTileRows = 6;
inline constexpr int kFusedRows = 5;
inline constexpr int kFirstRows = 4;
inline constexpr int kFusedTwoSums = 2;
#endif
// k of a stretch that is decoded at once: 2 panels are 72 KiB and stay in L2, or L1 for one panel.
inline constexpr int kStretch = 576;

// A panel times kRows rows, weights decoded in registers. Scales stay outside of the blocks' sums:
// y = sum over blocks of d * sum(code * x) + m * sum(x).
template <Layout kLayout, int kRows>
ATTUNE_LANES void fused_block_rows(const Product& p, int64_t row, int64_t panel) {
  using D = Decoder<kLayout>;
  const uint8_t* w = p.weight + panel * p.panel_bytes;
  const float* x = static_cast<const float*>(p.x) + row * p.ldx;
  const float* x_sums = p.x_sums + row * (p.k / kBlock);
  // One sum per half where the halves' scales differ, or where one would wait for itself.
  constexpr int kHalves = kRows <= kFusedTwoSums || D::kSpec.scales == 2 ? 2 : 1;
  V16 total[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) total[r] = zero();
  for (int64_t b = 0; b < p.k / kBlock; ++b, x += kBlock) {
    const uint8_t* codes = D::codes_of(w, b);
    prefetch(codes, D::kSpec.unit_bytes() / (D::kSpec.super ? kSuper / kBlock : 1));
    const float* xr[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) xr[r] = opaque(x + r * p.ldx);
    V16 sum[kRows][kHalves];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) sum[r][h] = zero();
    D::codes(
        codes, [&](int j, V16 lo, V16 hi) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            sum[r][0] = fma(lo, set1(xr[r][j]), sum[r][0]);
            sum[r][kHalves - 1] = fma(hi, set1(xr[r][16 + j]), sum[r][kHalves - 1]);
          }
        });
    const Scales s = D::scales_of(w, b);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      if constexpr (D::kHasMin) total[r] = fma(s.m, set1(x_sums[r * (p.k / kBlock) + b]), total[r]);
      if constexpr (D::kSpec.scales == 2) {
        total[r] = fma(s.d[1], sum[r][1], total[r]);
        total[r] = fma(s.d[0], sum[r][0], total[r]);
      } else {
        if constexpr (kHalves == 2) sum[r][0] = add(sum[r][0], sum[r][1]);
        total[r] = fma(s.d[0], sum[r][0], total[r]);
      }
    }
  }
  finish<kRows, 1>(p, row, panel * kPanel, total, true);
}

// The same for float layouts; 4 sums of a single row so that they need not wait for each other.
template <Layout kLayout, int kRows>
ATTUNE_LANES void fused_float_rows(const Product& p, int64_t row, int64_t panel) {
  using D = Decoder<kLayout>;
  const uint8_t* w = p.weight + panel * p.panel_bytes;
  const float* x = static_cast<const float*>(p.x) + row * p.ldx;
  constexpr int kParts = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  V16 sum[kRows][kParts];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int u = 0; u < kParts; ++u) sum[r][u] = zero();
  int64_t i = 0;
  for (; i + 4 <= p.k; i += 4) {
    prefetch(w + i * D::kSpec.unit_bytes(), 4 * D::kSpec.unit_bytes());
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      const V16 weight = D::value(w, i + u);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        sum[r][u % kParts] = fma(weight, set1(x[r * p.ldx + i + u]), sum[r][u % kParts]);
    }
  }
  for (; i < p.k; ++i)
    for (int r = 0; r < kRows; ++r)
      sum[r][0] = fma(D::value(w, i), set1(x[r * p.ldx + i]), sum[r][0]);
  V16 total[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    total[r] = sum[r][0];
#pragma GCC unroll 4
    for (int u = 1; u < kParts; ++u) total[r] = add(total[r], sum[r][u]);
  }
  finish<kRows, 1>(p, row, panel * kPanel, total, true);
}

template <Layout kLayout, int kRows>
__attribute__((noinline)) void fused_rows(const Product& p, int64_t row, int64_t panel) {
  if constexpr (spec(kLayout).bits == 0) {
    fused_float_rows<kLayout, kRows>(p, row, panel);
  } else {
    fused_block_rows<kLayout, kRows>(p, row, panel);
  }
}

template <Layout kLayout>
void fused(const Product& p, int64_t begin, int64_t end) {
  using Rows = void (*)(const Product&, int64_t, int64_t);
  static constexpr Rows kRows[] = {
    nullptr,
    fused_rows<kLayout, 1>,
    fused_rows<kLayout, 2>,
    fused_rows<kLayout, 3>,
    fused_rows<kLayout, 4>,
    fused_rows<kLayout, 5>,
#if defined(__AVX512F__)
    fused_rows<kLayout, 6>,
    fused_rows<kLayout, 7>,
    fused_rows<kLayout, 8>,
#endif
  };
  for (int64_t panel = begin; panel < end; ++panel)
    for_tiles<kFusedRows>(
        0, p.m, {}, [&](int64_t row, int64_t rows) __attribute__((always_inline)) {
          kRows[rows](p, row, panel);
        });
}

// What the tiles of one pair of panels and one stretch of k share.
struct Stretch {
  int64_t n0, k0, count;     // first column; first k and how many
  const uint8_t* panels[2];  // packed
  bool both;                 // whether the second panel exists
  float* w;                  // decoded: [panel][k][16]
};

// The first tile of a stretch decodes the weights, uses them and keeps them for the tiles that
// follow: decoding and multiplying want different parts of the core, and overlap. Sums run in the
// order of k, as in the other tiles.
template <Layout kLayout, int kRows, int kPanels, bool kKeep>
ATTUNE_LANES void decoding_tile(const Product& p, const Stretch& s, int64_t row, int panel) {
  using D = Decoder<kLayout>;
  V16 sum[kRows][kPanels];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < kPanels; ++c) sum[r][c] = zero();
  const float* x = static_cast<const float*>(p.x) + row * p.ldx + s.k0;
  float* out = s.w + panel * kStretch * kPanel;
  const auto use = [&](V16 weights[kPanels], const float* const xr[kRows], int i)
      __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int c = 0; c < kPanels; ++c)
      if constexpr (kKeep) store(out + c * kStretch * kPanel + i * kPanel, weights[c]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V16 xi = set1(xr[r][i]);
#pragma GCC unroll 2
      for (int c = 0; c < kPanels; ++c) sum[r][c] = fma(weights[c], xi, sum[r][c]);
    }
  };
  const float* xr[kRows];
  V16 weights[kPanels];
  if constexpr (D::kSpec.bits == 0) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) xr[r] = x + r * p.ldx;
    for (int64_t i = 0; i < s.count; ++i) {
#pragma GCC unroll 2
      for (int c = 0; c < kPanels; ++c) weights[c] = D::value(s.panels[panel + c], s.k0 + i);
      use(weights, xr, static_cast<int>(i));
    }
  } else {
    for (int64_t b = s.k0 / kBlock; b < (s.k0 + s.count) / kBlock; ++b) {
      Scales scales[kPanels];
      const uint8_t* codes[kPanels];
#pragma GCC unroll 2
      for (int c = 0; c < kPanels; ++c) {
        scales[c] = D::code_scales_of(s.panels[panel + c], b);
        codes[c] = D::codes_of(s.panels[panel + c], b);
        prefetch(codes[c], D::kSpec.unit_bytes() / (D::kSpec.super ? kSuper / kBlock : 1));
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) xr[r] = opaque(x + r * p.ldx);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
        for (int c = 0; c < kPanels; ++c) codes[c] = opaque(codes[c]);  // load bytes again
#pragma GCC unroll 16
        for (int j = 0; j < 16; ++j) {
#pragma GCC unroll 2
          for (int c = 0; c < kPanels; ++c)
            weights[c] = D::weight_at(codes[c], scales[c], 16 * half + j);
          use(weights, xr, 16 * half + j);
        }
      }
      x += kBlock;
      out += kBlock * kPanel;
    }
  }
  finish<kRows, kPanels>(p, row, s.n0 + panel * kPanel, &sum[0][0], s.k0 == 0);
}

// Both panels of a pair; kPanels at a time.
template <Layout kLayout, int kRows, bool kKeep>
__attribute__((noinline)) void decoding_pair(const Product& p, const Stretch& s, int64_t row) {
  constexpr int kPanels = kFirstRows > 4 || kRows <= 2 ? 2 : 1;
  decoding_tile<kLayout, kRows, kPanels, kKeep>(p, s, row, 0);
  if constexpr (kPanels == 1)
    if (s.both) decoding_tile<kLayout, kRows, kPanels, kKeep>(p, s, row, 1);
}

template <Layout kLayout>
ATTUNE_LANES void first_tile(const Product& p, const Stretch& s, int64_t row, int64_t rows,
                             bool keep) {
  using First = void (*)(const Product&, const Stretch&, int64_t);
  static constexpr First kAlone[] = {
    nullptr,
    decoding_pair<kLayout, 1, false>,
    decoding_pair<kLayout, 2, false>,
    decoding_pair<kLayout, 3, false>,
    decoding_pair<kLayout, 4, false>,
#if defined(__AVX512F__)
    decoding_pair<kLayout, 5, false>,
    decoding_pair<kLayout, 6, false>,
    decoding_pair<kLayout, 7, false>,
    decoding_pair<kLayout, 8, false>,
#endif
  };
  if (keep) {
    decoding_pair<kLayout, kFirstRows, true>(p, s, row);
  } else {
    kAlone[rows](p, s, row);
  }
}

// kRows rows by kPanels panels over `count` k; w[panel][k][16] with `step` floats between panels.
template <int kRows, int kPanels>
ATTUNE_LANES void tile(const Product& p, int64_t row, int64_t n0, const float* x, const float* w,
                       int64_t step, int64_t count, bool first) {
  V16 sum[kRows][kPanels];
  prefetch_y<kRows>(p, row, n0);
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
  finish<kRows, kPanels>(p, row, n0, &sum[0][0], first);
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

template <Layout kLayout>
void tiled(const Product& p, int64_t pair_begin, int64_t pair_end, int64_t row_begin,
           int64_t row_end) {
  alignas(64) float w[2 * kStretch * kPanel];
  // Equal stretches, fixed by k alone.
  const int64_t stretches = (p.k + kStretch - 1) / kStretch;
  const int64_t even = ((p.k + stretches - 1) / stretches + kBlock - 1) / kBlock * kBlock;
  const int64_t stretch_bytes = p.panel_bytes / stretches;
  const int64_t rows = row_end - row_begin, first = rows < kFirstRows ? rows : kFirstRows;
  for (int64_t pair = pair_begin; pair < pair_end; ++pair) {
    const uint8_t* panel = p.weight + pair * 2 * p.panel_bytes;
    Stretch s{.n0 = pair * 2 * kPanel, .w = w};
    s.both = s.n0 + kPanel < p.n;  // else the panel is its own partner, and not stored
    s.panels[0] = panel;
    s.panels[1] = s.both ? panel + p.panel_bytes : panel;
    for (int64_t i = 0; i < stretches; ++i) {
      s.k0 = i * even;
      s.count = p.k - s.k0 < even ? p.k - s.k0 : even;
      first_tile<kLayout>(p, s, row_begin, first, rows > first);
      // The next stretch, or the next pair's first: likely this thread's next piece.
      const uint8_t* after =
          i + 1 < stretches ? panel + (i + 1) * stretch_bytes : panel + 2 * p.panel_bytes;
      for_tiles<kTileRows>(
          row_begin + first, row_end, {{after, after + p.panel_bytes}, stretch_bytes},
          [&](int64_t row, int64_t count) __attribute__((always_inline)) {
            kTiles[count](p, row, s.n0, static_cast<const float*>(p.x) + row * p.ldx + s.k0, w,
                          s.both ? kStretch * kPanel : 0, s.count, s.k0 == 0);
          });
    }
  }
}

template <Layout kLayout>
inline constexpr Kernels kKernels = {fused<kLayout>, tiled<kLayout>};

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
