// Products of bfloat16 activations with vdpbf16ps, which adds two products per lane and step. Codes
// of quantised weights are exact in bfloat16 (at most 8 bits), so nothing of the weight is lost:
// sums over a block run in float32 inside the instruction, scales are applied in float32 outside,
//   y = sum over blocks of d * sum(code * x) + m * sum(x).
// (Rounding d * code + m to bfloat16 instead would add an error as large as that of the
// activations.)
#include "ops/gemm/cpu/decode.h"
#include "ops/gemm/cpu/kernels.h"
#include "ops/gemm/cpu/tile_util.h"

namespace attune::ops::gemm {
inline namespace avx512_bf16 {

// 12 rows x 2 panels: 24 sums of a block in registers; the totals wait in memory meanwhile.
inline constexpr int kTileRows = 12;
inline constexpr int kFusedRows = 8;
// k of a stretch that is decoded at once: 36 KiB of pairs for 2 panels.
inline constexpr int kStretch = 576;

using Pairs = __m512i;  // two bfloat16 of consecutive k, per lane

ATTUNE_LANES V16 dot(V16 sum, Pairs w, Pairs x) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)w, (__m512bh)x)};
}
ATTUNE_LANES Pairs load_pairs(const void* p) {
  return _mm512_loadu_si512(p);
}
// x[0], x[1] in every lane.
ATTUNE_LANES Pairs broadcast_pair(const uint16_t* x) {
  int pair;
  __builtin_memcpy(&pair, x, 4);
  return _mm512_set1_epi32(pair);
}
// Floats that are exact in bfloat16.
ATTUNE_LANES Pairs join(V16 even, V16 odd) {
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even.v), 16),
                         _mm512_castps_si512(odd.v));
}

// For i in [0, 16): use(i, codes of k = 2 i and 2 i + 1).
template <Layout kLayout, typename Use>
ATTUNE_LANES void code_pairs(const uint8_t* codes, Use use) {
  V16 even_lo, even_hi;
  Decoder<kLayout>::codes(
      codes, [&](int j, V16 lo, V16 hi) __attribute__((always_inline)) {
        if (j % 2 == 0) {
          even_lo = lo;
          even_hi = hi;
        } else {
          use(j / 2, join(even_lo, lo));
          use(8 + j / 2, join(even_hi, hi));
        }
      });
}

ATTUNE_LANES const uint16_t* x_at(const Product& p, int64_t row, int64_t k) {
  return static_cast<const uint16_t*>(p.x) + row * p.ldx + k;
}

// ---- few rows: weights decoded in registers ----

template <Layout kLayout, int kRows>
ATTUNE_LANES void fused_block_rows(const Product& p, int64_t row, int64_t panel) {
  using D = Decoder<kLayout>;
  const uint8_t* w = p.weight + panel * p.panel_bytes;
  const float* x_sums = p.x_sums + row * (p.k / kBlock);
  V16 total[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) total[r] = zero();
  for (int64_t b = 0; b < p.k / kBlock; ++b) {
    const uint8_t* codes = D::codes_of(w, b);
    prefetch(codes, D::kSpec.unit_bytes() / (D::kSpec.super ? kSuper / kBlock : 1));
    const uint16_t* x[kRows];
    V16 sum[kRows][2];  // of the block's halves, which may have scales of their own
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      x[r] = opaque(x_at(p, row + r, b * kBlock));
      sum[r][0] = sum[r][1] = zero();
    }
    code_pairs<kLayout>(
        codes, [&](int i, Pairs pair) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r)
            sum[r][i / 8] = dot(sum[r][i / 8], pair, broadcast_pair(x[r] + 2 * i));
        });
    const Scales s = D::scales_of(w, b);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      if constexpr (D::kHasMin) total[r] = fma(s.m, set1(x_sums[r * (p.k / kBlock) + b]), total[r]);
      total[r] = fma(s.d[0], sum[r][0], total[r]);
      total[r] = fma(s.d[1], sum[r][1], total[r]);
    }
  }
  finish<kRows, 1>(p, row, panel * kPanel, total, true);
}

// The last pair of an odd k has no second element, and what lies behind the row may be anything.
ATTUNE_LANES Pairs last_pair(const uint16_t* x) {
  return _mm512_set1_epi32(x[0]);
}

// Weights that are pairs in memory.
template <int kRows>
ATTUNE_LANES void fused_pair_rows(const Product& p, int64_t row, int64_t panel) {
  const uint8_t* w = p.weight + panel * p.panel_bytes;
  constexpr int kParts = kRows <= 2 ? 4 : 2;
  V16 sum[kRows][kParts];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int u = 0; u < kParts; ++u) sum[r][u] = zero();
  int64_t i = 0;
  for (; i + 8 <= p.k; i += 8) {
    prefetch(w + i * 2 * kPanel, 8 * 2 * kPanel);
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      const Pairs pair = load_pairs(w + (i + 2 * u) * 2 * kPanel);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        sum[r][u % kParts] =
            dot(sum[r][u % kParts], pair, broadcast_pair(x_at(p, row + r, i + 2 * u)));
    }
  }
  for (; i < p.k; i += 2) {
    const Pairs pair = load_pairs(w + i * 2 * kPanel);
    for (int r = 0; r < kRows; ++r) {
      const uint16_t* x = x_at(p, row + r, i);
      sum[r][0] = dot(sum[r][0], pair, i + 1 < p.k ? broadcast_pair(x) : last_pair(x));
    }
  }
  V16 total[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    total[r] = add(sum[r][0], sum[r][1]);
    if constexpr (kParts == 4) total[r] = add(total[r], add(sum[r][2], sum[r][3]));
  }
  finish<kRows, 1>(p, row, panel * kPanel, total, true);
}

template <Layout kLayout, int kRows>
__attribute__((noinline)) void fused_rows(const Product& p, int64_t row, int64_t panel) {
  if constexpr (kLayout == Layout::kBF16Pairs) {
    fused_pair_rows<kRows>(p, row, panel);
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
      fused_rows<kLayout, 6>,
      fused_rows<kLayout, 7>,
      fused_rows<kLayout, 8>,
  };
  for (int64_t panel = begin; panel < end; ++panel)
    for_tiles<kFusedRows>(
        0, p.m, {}, [&](int64_t row, int64_t rows) __attribute__((always_inline)) {
          kRows[rows](p, row, panel);
        });
}

// ---- many rows: a stretch of two panels is decoded to pairs, then multiplied with all rows ----

// What a stretch becomes: pairs[panel][k / 2][16], and its scales [panel][k / 32][16].
struct Stretch {
  alignas(64) uint8_t pairs[2][kStretch / 2 * kPanel * 4];
  alignas(64) float d[2][kStretch / kBlock][2][kPanel];
  alignas(64) float m[2][kStretch / kBlock][kPanel];
};

template <Layout kLayout>
ATTUNE_LANES void decode_stretch(const uint8_t* panel, int64_t k0, int64_t count, int c,
                                 Stretch& out) {
  using D = Decoder<kLayout>;
  for (int64_t b = 0; b < count / kBlock; ++b) {
    const int64_t block = k0 / kBlock + b;
    const Scales s = D::scales_of(panel, block);
    store(out.d[c][b][0], s.d[0]);
    store(out.d[c][b][1], s.d[1]);
    if constexpr (D::kHasMin) store(out.m[c][b], s.m);
    uint8_t* pairs = out.pairs[c] + b * (kBlock / 2) * kPanel * 4;
    code_pairs<kLayout>(
        D::codes_of(panel, block), [&](int i, Pairs pair) __attribute__((always_inline)) {
          _mm512_storeu_si512(pairs + i * kPanel * 4, pair);
        });
  }
}

// The first of every 3 rows by pointer, the others by distance from it: few address registers.
template <int kRows>
struct RowPointers {
  const uint8_t* at[(kRows + 2) / 3];
  int64_t stride;
  ATTUNE_LANES const uint16_t* of(const RowPointers& x, int r, int64_t k) {
    return reinterpret_cast<const uint16_t*>(x.at[r / 3] + r % 3 * x.stride) + k;
  }
};

template <int kRows>
ATTUNE_LANES RowPointers<kRows> row_pointers(const Product& p, int64_t row, int64_t k0) {
  RowPointers<kRows> x;
  x.stride = p.ldx * 2;
#pragma GCC unroll 4
  for (int i = 0; i < (kRows + 2) / 3; ++i)
    x.at[i] = opaque(reinterpret_cast<const uint8_t*>(x_at(p, row + 3 * i, k0)));
  return x;
}

// sum[r][c] += pairs of `count` k.
template <int kRows>
ATTUNE_LANES void dot_pairs(V16 sum[kRows][2], const RowPointers<kRows>& x, int64_t k0,
                            const uint8_t* w0, const uint8_t* w1, int64_t count) {
  for (int64_t i = 0; i < count; i += 2) {
    const Pairs a = load_pairs(w0 + i * 2 * kPanel), b = load_pairs(w1 + i * 2 * kPanel);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Pairs xr = broadcast_pair(RowPointers<kRows>::of(x, r, k0 + i));
      sum[r][0] = dot(sum[r][0], a, xr);
      sum[r][1] = dot(sum[r][1], b, xr);
    }
  }
}

template <int kRows>
ATTUNE_LANES void clear(V16 sum[kRows][2]) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = zero();
}

template <int kRows, bool kHasMin, int kScales>
__attribute__((noinline)) void block_tile(const Product& p, int64_t row, int64_t n0,
                                          const Stretch& s, int64_t k0, int64_t count) {
  constexpr int kPart = kBlock / kScales;  // k under one scale
  prefetch_y<kRows>(p, row, n0);
  const RowPointers<kRows> x = row_pointers<kRows>(p, row, k0);
  const float* x_sums = p.x_sums + row * (p.k / kBlock) + k0 / kBlock;
  V16 total[kRows][2];
  clear<kRows>(total);
  for (int64_t b = 0; b < count / kBlock; ++b) {
#pragma GCC unroll 2
    for (int h = 0; h < kScales; ++h) {
      V16 sum[kRows][2];
      clear<kRows>(sum);
      const int64_t at = b * kBlock + h * kPart;
      dot_pairs<kRows>(sum, x, at, s.pairs[0] + at * 2 * kPanel, s.pairs[1] + at * 2 * kPanel,
                       kPart);
      const V16 d0 = load(s.d[0][b][h]), d1 = load(s.d[1][b][h]);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        total[r][0] = fma(d0, sum[r][0], total[r][0]);
        total[r][1] = fma(d1, sum[r][1], total[r][1]);
      }
    }
    if constexpr (kHasMin) {
      const V16 m0 = load(s.m[0][b]), m1 = load(s.m[1][b]);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const V16 xs = set1(x_sums[r * (p.k / kBlock) + b]);
        total[r][0] = fma(m0, xs, total[r][0]);
        total[r][1] = fma(m1, xs, total[r][1]);
      }
    }
  }
  finish<kRows, 2>(p, row, n0, &total[0][0], k0 == 0);
}

// Pairs straight from the packed weight.
template <int kRows>
__attribute__((noinline)) void pair_tile(const Product& p, int64_t row, int64_t n0,
                                         const uint8_t* w0, const uint8_t* w1, int64_t k0,
                                         int64_t count) {
  prefetch_y<kRows>(p, row, n0);
  const RowPointers<kRows> x = row_pointers<kRows>(p, row, k0);
  V16 sum[kRows][2];
  clear<kRows>(sum);
  const int64_t even = count / 2 * 2;
  dot_pairs<kRows>(sum, x, 0, w0, w1, even);
  if (even < count) {
    const Pairs a = load_pairs(w0 + even * 2 * kPanel), b = load_pairs(w1 + even * 2 * kPanel);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Pairs xr = last_pair(RowPointers<kRows>::of(x, r, even));
      sum[r][0] = dot(sum[r][0], a, xr);
      sum[r][1] = dot(sum[r][1], b, xr);
    }
  }
  finish<kRows, 2>(p, row, n0, &sum[0][0], k0 == 0);
}

template <bool kHasMin, int kScales>
ATTUNE_LANES void any_block_tile(const Product& p, int64_t row, int64_t rows, int64_t n0,
                                 const Stretch& s, int64_t k0, int64_t count) {
  using Tile = void (*)(const Product&, int64_t, int64_t, const Stretch&, int64_t, int64_t);
  static constexpr Tile kTiles[] = {
      nullptr,
      block_tile<1, kHasMin, kScales>,
      block_tile<2, kHasMin, kScales>,
      block_tile<3, kHasMin, kScales>,
      block_tile<4, kHasMin, kScales>,
      block_tile<5, kHasMin, kScales>,
      block_tile<6, kHasMin, kScales>,
      block_tile<7, kHasMin, kScales>,
      block_tile<8, kHasMin, kScales>,
      block_tile<9, kHasMin, kScales>,
      block_tile<10, kHasMin, kScales>,
      block_tile<11, kHasMin, kScales>,
      block_tile<12, kHasMin, kScales>,
  };
  kTiles[rows](p, row, n0, s, k0, count);
}

ATTUNE_LANES void any_pair_tile(const Product& p, int64_t row, int64_t rows, int64_t n0,
                                const uint8_t* w0, const uint8_t* w1, int64_t k0, int64_t count) {
  using Tile =
      void (*)(const Product&, int64_t, int64_t, const uint8_t*, const uint8_t*, int64_t, int64_t);
  static constexpr Tile kTiles[] = {
      nullptr,       pair_tile<1>,  pair_tile<2>,  pair_tile<3>, pair_tile<4>,
      pair_tile<5>,  pair_tile<6>,  pair_tile<7>,  pair_tile<8>, pair_tile<9>,
      pair_tile<10>, pair_tile<11>, pair_tile<12>,
  };
  kTiles[rows](p, row, n0, w0, w1, k0, count);
}

template <Layout kLayout>
void tiled(const Product& p, int64_t pair_begin, int64_t pair_end, int64_t row_begin,
           int64_t row_end) {
  using D = Decoder<kLayout>;
  constexpr bool kStored = kLayout == Layout::kBF16Pairs;
  Stretch stretch;
  const int64_t stretches = (p.k + kStretch - 1) / kStretch;
  const int64_t even = ((p.k + stretches - 1) / stretches + kBlock - 1) / kBlock * kBlock;
  const int64_t stretch_bytes = p.panel_bytes / stretches;
  for (int64_t pair = pair_begin; pair < pair_end; ++pair) {
    const int64_t n0 = pair * 2 * kPanel;
    const uint8_t* w0 = p.weight + pair * 2 * p.panel_bytes;
    // A last panel without a partner is its own: what it gives is not stored.
    const uint8_t* w1 = n0 + kPanel < p.n ? w0 + p.panel_bytes : w0;
    for (int64_t k0 = 0, s = 0; k0 < p.k; k0 += even, ++s) {
      const int64_t count = p.k - k0 < even ? p.k - k0 : even;
      if constexpr (!kStored) {
        decode_stretch<kLayout>(w0, k0, count, 0, stretch);
        decode_stretch<kLayout>(w1, k0, count, 1, stretch);
      }
      const uint8_t* after =
          s + 1 < stretches ? w0 + (s + 1) * stretch_bytes : w0 + 2 * p.panel_bytes;
      for_tiles<kTileRows>(
          row_begin, row_end, {{after, after + p.panel_bytes}, stretch_bytes},
          [&](int64_t row, int64_t rows) __attribute__((always_inline)) {
            if constexpr (kStored) {
              any_pair_tile(p, row, rows, n0, w0 + k0 * 2 * kPanel, w1 + k0 * 2 * kPanel, k0,
                            count);
            } else {
              any_block_tile<D::kHasMin, D::kSpec.scales>(p, row, rows, n0, stretch, k0, count);
            }
          });
    }
  }
}

template <Layout kLayout>
inline constexpr Kernels kKernels = {fused<kLayout>, tiled<kLayout>};

}  // namespace avx512_bf16

const Kernels& avx512_bf16_kernels(Layout layout) {
  switch (layout) {
    case Layout::kBF16Pairs:
      return kKernels<Layout::kBF16Pairs>;
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

void block_sums_bf16(const void* halves, int32_t k, float* sums) {
  const uint16_t* x = static_cast<const uint16_t*>(halves);
  const __m512i ones = _mm512_set1_epi16(0x3f80);
  for (int32_t b = 0; b < k / kBlock; ++b)
    sums[b] = _mm512_reduce_add_ps(dot(zero(), load_pairs(x + b * kBlock), ones).v);
}

}  // namespace attune::ops::gemm
