// Decoding of packed.h's layouts into floats, 16 rows at a time.
#pragma once

#include "ops/gemm/cpu/lanes.h"
#include "ops/gemm/cpu/packed.h"

namespace attune::ops::gemm {
#if defined(__AVX512F__)
inline namespace avx512 {
#else
inline namespace avx2 {
#endif

// A weight of the block is d * code + m; the first 16 k use d[0], the others d[1].
struct Scales {
  V16 d[2];
  V16 m;  // only where has_min
};

template <Layout kLayout>
struct Decoder {
  static constexpr Spec kSpec = spec(kLayout);
  // Whether m differs from zero. q6_K's offset is taken off its codes instead, as its m would have
  // to come twice too.
  static constexpr bool kHasMin = kSpec.min || kSpec.offset != 0;

  // Where block b of a panel has its scales' unit and its codes.
  ATTUNE_LANES const uint8_t* unit(const uint8_t* panel, int64_t b) {
    return panel + (kSpec.super ? b / 8 : b) * kSpec.unit_bytes();
  }
  ATTUNE_LANES const uint8_t* codes_of(const uint8_t* panel, int64_t b) {
    const uint8_t* codes = unit(panel, b) + kSpec.header_bytes();
    return kSpec.super ? codes + b % 8 * kSpec.code_bytes() : codes;
  }

  ATTUNE_LANES Scales scales_of(const uint8_t* panel, int64_t b) {
    const uint8_t* p = unit(panel, b);
    Scales s;
    s.d[0] = s.d[1] = from_f16(p);
    if constexpr (kSpec.super) {
      const uint8_t* sub = p + kPanel * 2 * (kSpec.min ? 2 : 1) + b % 8 * kSpec.scales * kPanel;
      if constexpr (kSpec.scales == 2) {
        s.d[1] = mul(s.d[0], to_float(from_signed_bytes(sub + kPanel)));
        s.d[0] = mul(s.d[0], to_float(from_signed_bytes(sub)));
      } else {
        s.m = neg(mul(from_f16(p + 2 * kPanel), to_float(from_bytes(sub + 8 * kPanel))));
        s.d[0] = s.d[1] = mul(s.d[0], to_float(from_bytes(sub)));
      }
    } else if constexpr (kSpec.min) {
      s.m = from_f16(p + 2 * kPanel);
    } else if constexpr (kSpec.offset != 0) {
      s.m = mul(s.d[0], set1(-static_cast<float>(kSpec.offset)));
    }
    return s;
  }

  // For j in [0, 16): use(j, code of k = j, code of k = 16 + j), as floats.
  template <typename Use>
  ATTUNE_LANES void codes(const uint8_t* p, Use use) {
    if constexpr (kSpec.bits == 8) {
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j)
        use(j, to_float(from_signed_bytes(p + kPanel * j)),
            to_float(from_signed_bytes(p + kPanel * (16 + j))));
    } else if constexpr (kSpec.bits == 4) {
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
        const Words both = from_bytes(p + kPanel * j);
        use(j, nibble_to_float(both), upper_to_float(both));
      }
    } else if constexpr (kSpec.bits == 5) {
      const Words high = load_words(p);
      p += 4 * kPanel;
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
        const Words both = from_bytes(p + kPanel * j);
        const Words lo = bits_or(bits_and(both, 15), bits_and(shift(high, 4 - j), 16));
        const Words hi = bits_or(shift(both, -4), bits_and(shift(high, -12 - j), 16));
        use(j, to_float(lo), to_float(hi));
      }
    } else {
      const Words high0 = load_words(p), high1 = load_words(p + 4 * kPanel);
      p += 8 * kPanel;
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
        const Words both = from_bytes(p + kPanel * j);
        const Words lo = bits_or(bits_and(both, 15), bits_and(shift(high0, 4 - 2 * j), 48));
        const Words hi = bits_or(shift(both, -4), bits_and(shift(high1, 4 - 2 * j), 48));
        use(j, to_float(plus(lo, -32)), to_float(plus(hi, -32)));
      }
    }
  }

  // Floats of k = i, for the float layouts.
  ATTUNE_LANES V16 value(const uint8_t* panel, int64_t i) {
    if constexpr (kLayout == Layout::kF32) {
      return load(reinterpret_cast<const float*>(panel + i * 4 * kPanel));
    } else if constexpr (kLayout == Layout::kF16) {
      return from_f16(panel + i * 2 * kPanel);
    } else {
      return from_bf16(panel + i * 2 * kPanel);
    }
  }

  // The code of k = i, i a constant in [0, 32); of 4-bit codes the upper ones times 16, since a
  // shift would want the part of the core that multiplies.
  ATTUNE_LANES V16 code_at(const uint8_t* p, int i) {
    if constexpr (kSpec.bits == 8) {
      return to_float(from_signed_bytes(p + kPanel * i));
    } else {
      constexpr int kHighBits = kSpec.bits - 4;  // of a code, each kind in words of its own
      const int j = i % 16, up = i / 16;
      const Words both = from_bytes(p + kPanel * (4 * kHighBits + j));
      if constexpr (kHighBits == 0)
        return up ? to_float(bits_and(both, 0xf0)) : nibble_to_float(both);
      const Words low = up ? shift(both, -4) : bits_and(both, 15);
      if constexpr (kHighBits == 1)
        return to_float(bits_or(low, bits_and(shift(load_words(p), 4 - i), 16)));
      const Words high = load_words(p + up * 4 * kPanel);
      return to_float(plus(bits_or(low, bits_and(shift(high, 4 - 2 * j), 48)), -32));
    }
  }

  // The scales that go with code_at.
  ATTUNE_LANES Scales code_scales_of(const uint8_t* panel, int64_t b) {
    Scales s = scales_of(panel, b);
    if constexpr (kSpec.bits == 4) s.d[1] = mul(s.d[1], set1(1.0f / 16));
    return s;
  }

  // The weight of k = i of a block.
  ATTUNE_LANES V16 weight_at(const uint8_t* codes, const Scales& s, int i) {
    const V16 code = code_at(codes, i);
    return kHasMin ? fma(code, s.d[i / 16], s.m) : mul(code, s.d[i / 16]);
  }
};

}  // inline namespace
}  // namespace attune::ops::gemm
