// 16 floats, one per row of a panel: two registers with AVX2, one with AVX-512; and the loads that
// decode a panel's fields into them. Compiled into each level's unit; the inline namespace keeps
// the instances apart.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define ATTUNE_LANES static inline __attribute__((always_inline))

namespace attune::ops::gemm {
#if defined(__AVX512F__)
inline namespace avx512 {

struct V16 {
  __m512 v;
};
struct Words {  // a 32-bit word per lane
  __m512i v;
};

ATTUNE_LANES V16 zero() {
  return {_mm512_setzero_ps()};
}
ATTUNE_LANES V16 set1(float x) {
  return {_mm512_set1_ps(x)};
}
ATTUNE_LANES V16 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
ATTUNE_LANES V16 load_first(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)};
}
ATTUNE_LANES void store(float* p, V16 a) {
  _mm512_storeu_ps(p, a.v);
}
ATTUNE_LANES void store_first(float* p, V16 a, int n) {
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), a.v);
}
ATTUNE_LANES V16 add(V16 a, V16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
ATTUNE_LANES V16 mul(V16 a, V16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
ATTUNE_LANES V16 neg(V16 a) {
  return {_mm512_sub_ps(_mm512_setzero_ps(), a.v)};
}
ATTUNE_LANES V16 fma(V16 a, V16 b, V16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
ATTUNE_LANES __m256i load_256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
ATTUNE_LANES __m128i load_128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
ATTUNE_LANES V16 from_f16(const uint8_t* p) {
  return {_mm512_cvtph_ps(load_256(p))};
}
ATTUNE_LANES V16 from_bf16(const uint8_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(p)), 16))};
}
ATTUNE_LANES Words from_bytes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(load_128(p))};
}
ATTUNE_LANES Words from_signed_bytes(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(load_128(p))};
}
ATTUNE_LANES Words load_words(const uint8_t* p) {
  return {_mm512_loadu_si512(p)};
}
ATTUNE_LANES V16 to_float(Words w) {
  return {_mm512_cvtepi32_ps(w.v)};
}
ATTUNE_LANES Words bits_and(Words a, int mask) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(mask))};
}
ATTUNE_LANES Words bits_or(Words a, Words b) {
  return {_mm512_or_si512(a.v, b.v)};
}
ATTUNE_LANES Words plus(Words a, int x) {
  return {_mm512_add_epi32(a.v, _mm512_set1_epi32(x))};
}
// By a constant: left if positive.
ATTUNE_LANES Words shift(Words a, int by) {
  return {by >= 0 ? _mm512_slli_epi32(a.v, by) : _mm512_srli_epi32(a.v, -by)};
}
// The float of each word's low 4 bits, whatever the others hold.
ATTUNE_LANES V16 nibble_to_float(Words w) {
  return {_mm512_permutexvar_ps(
      w.v, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))};
}
// The float of bits 4 to 7 of words below 256.
ATTUNE_LANES V16 upper_to_float(Words w) {
  return nibble_to_float(shift(w, -4));
}
#else
inline namespace avx2 {

struct V16 {
  __m256 a, b;
};
struct Words {  // a 32-bit word per lane
  __m256i a, b;
};

ATTUNE_LANES V16 zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
ATTUNE_LANES V16 set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
ATTUNE_LANES V16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
ATTUNE_LANES __m256i first_mask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
ATTUNE_LANES V16 load_first(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_mask(n)), _mm256_maskload_ps(p + 8, first_mask(n - 8))};
}
ATTUNE_LANES void store(float* p, V16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
ATTUNE_LANES void store_first(float* p, V16 x, int n) {
  _mm256_maskstore_ps(p, first_mask(n), x.a);
  _mm256_maskstore_ps(p + 8, first_mask(n - 8), x.b);
}
ATTUNE_LANES V16 add(V16 x, V16 y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
ATTUNE_LANES V16 mul(V16 x, V16 y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
ATTUNE_LANES V16 neg(V16 x) {
  return {_mm256_sub_ps(_mm256_setzero_ps(), x.a), _mm256_sub_ps(_mm256_setzero_ps(), x.b)};
}
ATTUNE_LANES V16 fma(V16 x, V16 y, V16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
ATTUNE_LANES __m128i load_128(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
ATTUNE_LANES __m128i load_64(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
ATTUNE_LANES V16 from_f16(const uint8_t* p) {
  return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 16))};
}
ATTUNE_LANES __m256 bf16_half(const uint8_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p)), 16));
}
ATTUNE_LANES V16 from_bf16(const uint8_t* p) {
  return {bf16_half(p), bf16_half(p + 16)};
}
ATTUNE_LANES Words from_bytes(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(load_64(p)), _mm256_cvtepu8_epi32(load_64(p + 8))};
}
ATTUNE_LANES Words from_signed_bytes(const uint8_t* p) {
  return {_mm256_cvtepi8_epi32(load_64(p)), _mm256_cvtepi8_epi32(load_64(p + 8))};
}
ATTUNE_LANES Words load_words(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
ATTUNE_LANES V16 to_float(Words w) {
  return {_mm256_cvtepi32_ps(w.a), _mm256_cvtepi32_ps(w.b)};
}
ATTUNE_LANES Words bits_and(Words w, int mask) {
  return {_mm256_and_si256(w.a, _mm256_set1_epi32(mask)),
          _mm256_and_si256(w.b, _mm256_set1_epi32(mask))};
}
ATTUNE_LANES Words bits_or(Words x, Words y) {
  return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
ATTUNE_LANES Words plus(Words w, int x) {
  return {_mm256_add_epi32(w.a, _mm256_set1_epi32(x)), _mm256_add_epi32(w.b, _mm256_set1_epi32(x))};
}
// By a constant: left if positive.
ATTUNE_LANES Words shift(Words w, int by) {
  if (by >= 0) return {_mm256_slli_epi32(w.a, by), _mm256_slli_epi32(w.b, by)};
  return {_mm256_srli_epi32(w.a, -by), _mm256_srli_epi32(w.b, -by)};
}
// The float of each word's low 4 bits, whatever the others hold.
ATTUNE_LANES V16 nibble_to_float(Words w) {
  return to_float(bits_and(w, 15));
}
// The float of bits 4 to 7 of words below 256.
ATTUNE_LANES V16 upper_to_float(Words w) {
  return to_float(shift(w, -4));
}
#endif

}  // inline namespace avx512 or avx2
}  // namespace attune::ops::gemm
