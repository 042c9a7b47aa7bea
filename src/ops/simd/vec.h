// Float vectors as wide as the unit's instruction set: 8 lanes with AVX2, 16 with AVX-512. A kernel
// written with it is compiled once per level, each time in a unit with that level's flags; the
// inline namespace keeps those instances apart, so that the linker cannot mix them. Only for .cc
// files and kernel headers of CPU code.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define ATTUNE_SIMD inline __attribute__((always_inline))

namespace attune::ops::simd {
#if defined(__AVX512F__)
inline namespace avx512 {

inline constexpr int kLanes = 16;

struct Vec {
  __m512 v;
};
struct Mask {
  __mmask16 m;
};

ATTUNE_SIMD Vec zero() {
  return {_mm512_setzero_ps()};
}
ATTUNE_SIMD Vec set1(float x) {
  return {_mm512_set1_ps(x)};
}
ATTUNE_SIMD Vec load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
ATTUNE_SIMD void store(float* p, Vec a) {
  _mm512_storeu_ps(p, a.v);
}
ATTUNE_SIMD Mask first(int n) {
  return {__mmask16((1u << n) - 1)};
}  // lanes [0, n), n < kLanes
ATTUNE_SIMD Vec load(const float* p, Mask m) {
  return {_mm512_maskz_loadu_ps(m.m, p)};
}
ATTUNE_SIMD void store(float* p, Vec a, Mask m) {
  _mm512_mask_storeu_ps(p, m.m, a.v);
}
ATTUNE_SIMD Vec select(Mask m, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(m.m, no.v, yes.v)};
}

ATTUNE_SIMD Vec operator+(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec operator-(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec operator*(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec operator/(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
ATTUNE_SIMD Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
// b where either is NaN.
ATTUNE_SIMD Vec max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// p * 2^n for whole n.
ATTUNE_SIMD Vec scale2(Vec p, Vec n) {
  return {_mm512_scalef_ps(p.v, n.v)};
}

ATTUNE_SIMD Mask less(Vec a, Vec b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
ATTUNE_SIMD float first_lane(Vec a) {
  return _mm512_cvtss_f32(a.v);
}
ATTUNE_SIMD float hsum(Vec a) {
  return _mm512_reduce_add_ps(a.v);
}
ATTUNE_SIMD float hmax(Vec a) {
  return _mm512_reduce_max_ps(a.v);
}

using Half = __m256i;  // kLanes 16-bit values
ATTUNE_SIMD Half load_half(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
ATTUNE_SIMD void store_half(uint16_t* p, Half h) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
}
ATTUNE_SIMD Vec from_bf16(Half h) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
ATTUNE_SIMD Vec from_f16(Half h) {
  return {_mm512_cvtph_ps(h)};
}
ATTUNE_SIMD Half to_f16(Vec a) {
  return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT);
}
// To nearest, ties to even; NaN stays NaN.
ATTUNE_SIMD Half to_bf16(Vec a) {
  const __m512i x = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(x, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
}

#else
inline namespace avx2 {

inline constexpr int kLanes = 8;

struct Vec {
  __m256 v;
};
struct Mask {
  __m256i m;
};

ATTUNE_SIMD Vec zero() {
  return {_mm256_setzero_ps()};
}
ATTUNE_SIMD Vec set1(float x) {
  return {_mm256_set1_ps(x)};
}
ATTUNE_SIMD Vec load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
ATTUNE_SIMD void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.v);
}
ATTUNE_SIMD Mask first(int n) {  // lanes [0, n), n < kLanes
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))};
}
ATTUNE_SIMD Vec load(const float* p, Mask m) {
  return {_mm256_maskload_ps(p, m.m)};
}
ATTUNE_SIMD void store(float* p, Vec a, Mask m) {
  _mm256_maskstore_ps(p, m.m, a.v);
}
ATTUNE_SIMD Vec select(Mask m, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_castsi256_ps(m.m))};
}

ATTUNE_SIMD Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
ATTUNE_SIMD Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm256_fnmadd_ps(a.v, b.v, c.v)};
}
// b where either is NaN.
ATTUNE_SIMD Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.v, b.v)};
}
ATTUNE_SIMD Vec round(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// p * 2^n for whole n in [-252, 254]: in two steps, since neither 2^128 nor 2^-127 is a normal
// float.
ATTUNE_SIMD Vec scale2(Vec p, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(p.v, a), b)};
}

ATTUNE_SIMD Mask less(Vec a, Vec b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
ATTUNE_SIMD float first_lane(Vec a) {
  return _mm256_cvtss_f32(a.v);
}
ATTUNE_SIMD float hsum(Vec a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
ATTUNE_SIMD float hmax(Vec a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

using Half = __m128i;  // kLanes 16-bit values
ATTUNE_SIMD Half load_half(const uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
ATTUNE_SIMD void store_half(uint16_t* p, Half h) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), h);
}
ATTUNE_SIMD Vec from_bf16(Half h) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
}
ATTUNE_SIMD Vec from_f16(Half h) {
  return {_mm256_cvtph_ps(h)};
}
ATTUNE_SIMD Half to_f16(Vec a) {
  return _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT);
}
// To nearest, ties to even; NaN stays NaN.
ATTUNE_SIMD Half to_bf16(Vec a) {
  const __m256i x = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
  const __m256i wide = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
}

#endif

// e^x within 2 ulp over the whole range; subnormal results too; infinity above, 0 below, NaN stays.
// Reduction by ln 2 in two parts (Cody & Waite), then 1 + r + r^2 q(r) with the relative minimax
// polynomial q of degree 4 on [-ln2/2, ln2/2] (Remez; error 3e-9).
ATTUNE_SIMD Vec exp(Vec x) {
  x = max(set1(-105.0f), min(set1(89.0f), x));
  const Vec n = round(x * set1(0x1.715476p+0f));
  Vec r = fnma(n, set1(0x1.62e400p-1f), x);
  r = fnma(n, set1(0x1.7f7d1cp-20f), r);
  Vec q = set1(0x1.6a23e0p-10f);
  q = fma(q, r, set1(0x1.123a20p-7f));
  q = fma(q, r, set1(0x1.5558f2p-5f));
  q = fma(q, r, set1(0x1.555492p-3f));
  q = fma(q, r, set1(0x1.fffffcp-2f));
  const Vec p = fma(r * r, q, r) + set1(1.0f);
  return scale2(p, n);
}

}  // inline namespace avx512 or avx2
}  // namespace attune::ops::simd
