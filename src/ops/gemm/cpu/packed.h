// How a packed weight lies in memory: shared by pack.cc, which writes it, and the kernels, which
// read it. Constants only, so that units of any instruction set may include it.
//
// 16 output rows make a panel (row n is lane n % 16 of panel n / 16; the last panel is padded with
// zero rows); panels follow one another, each a contiguous run over k. "x16" below is: for each of
// the panel's rows.
//   float formats: per k: value x16
//   quantised:     per 32 k a block of codes, with scales before it, or before each 8 blocks
//     q4 codes: 16 bytes x16; byte j holds code j (low nibble) and code j + 16 (high nibble)
//     q5 codes: the fifth bits, a 32-bit word x16 (bit k: code k), then as q4
//     q6 codes: bits 4 and 5, two words x16 (word h, bits 2j: code 16 h + j), then as q4
//     q8 codes: 32 signed bytes x16
//     scales:   d, or d and m, as binary16 x16. K-quants, per 256 k: d (and dmin), then the blocks'
//               scales (and mins) as bytes x16; q6_K has two scales in a block, one per 16 k
// The sizes are the file's but for the 6-bit scales of q4_K and q5_K, which take a byte each (+3
// %).
#pragma once

#include <cstdint>

namespace attune::ops::gemm {

inline constexpr int kPanel = 16;   // rows of a panel
inline constexpr int kBlock = 32;   // k of a block of codes
inline constexpr int kSuper = 256;  // k of a K-quant's super-block
// So that per-block sums of x fit the stack of a kernel.
inline constexpr int kMaxK = 1 << 16;

enum class Layout : int32_t {
  kF32,
  kF16,
  kBF16,
  kBF16Pairs,  // per two k: (value, value) x16, for products of bfloat16 pairs
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kCount,
};

struct Spec {
  int bits = 0;         // of a code; 0: a float format, whose element takes float_bytes
  int float_bytes = 0;  //
  bool min = false;     // w = d q + m (m from the file) ...
  int offset = 0;       // ... or w = d (q - offset)
  bool super = false;   // scales per 256
  int scales = 1;       // scales in a block of 32: 1, or 2 (one per 16)

  [[gnu::always_inline]] constexpr int code_bytes() const { return kBlock * kPanel * bits / 8; }
  [[gnu::always_inline]] constexpr int header_bytes() const {
    const int halves = kPanel * 2 * (min ? 2 : 1);
    return super ? halves + kPanel * (kSuper / kBlock) * (scales + (min ? 1 : 0)) : halves;
  }
  // One unit: header and codes of unit_elems() k, 16 rows.
  [[gnu::always_inline]] constexpr int unit_elems() const {
    return bits == 0 ? 1 : super ? kSuper : kBlock;
  }
  [[gnu::always_inline]] constexpr int unit_bytes() const {
    if (bits == 0) return float_bytes * kPanel;
    return header_bytes() + code_bytes() * (super ? kSuper / kBlock : 1);
  }
  [[gnu::always_inline]] constexpr int64_t panel_bytes(int64_t k) const {
    return k / unit_elems() * unit_bytes();
  }
};

[[gnu::always_inline]] constexpr Spec spec(Layout layout) {
  switch (layout) {
    case Layout::kF32:
      return {.float_bytes = 4};
    case Layout::kF16:
      return {.float_bytes = 2};
    case Layout::kBF16:
      return {.float_bytes = 2};
    case Layout::kBF16Pairs:
      return {.float_bytes = 2};
    case Layout::kQ4_0:
      return {.bits = 4, .offset = 8};
    case Layout::kQ4_1:
      return {.bits = 4, .min = true};
    case Layout::kQ5_0:
      return {.bits = 5, .offset = 16};
    case Layout::kQ5_1:
      return {.bits = 5, .min = true};
    case Layout::kQ8_0:
      return {.bits = 8};
    case Layout::kQ4_K:
      return {.bits = 4, .min = true, .super = true};
    case Layout::kQ5_K:
      return {.bits = 5, .min = true, .super = true};
    case Layout::kQ6_K:
      return {.bits = 6, .super = true, .scales = 2};
    case Layout::kCount:
      break;
  }
  return {};
}

// k in [0, kMaxK], a multiple of the layout's unit. Pairs round an odd k up.
[[gnu::always_inline]] constexpr int64_t panel_bytes(Layout layout, int64_t k) {
  return spec(layout).panel_bytes(layout == Layout::kBF16Pairs ? (k + 1) / 2 * 2 : k);
}

}  // namespace attune::ops::gemm
