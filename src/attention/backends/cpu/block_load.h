// Reading and writing rows of 32- and 16-bit floats, and keys transposed for the score kernel.
// Included by kernel_impl.h only; see microkernels.h for the unnamed namespace.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attention/backends/cpu/kernel.h"
#include "ops/simd/vec.h"
#include "tensor/dtype.h"

namespace attune::attention::cpu {
namespace {

namespace simd = ops::simd;
using ops::simd::kLanes;

// n elements of `from`, from element `at` on, as float32.
inline void load_row(const void* from, tensor::DType dtype, int64_t at, int32_t n, float* to) {
  if (dtype == tensor::DType::kF32) {
    const float* p = static_cast<const float*>(from) + at;
    for (int32_t i = 0; i < n; ++i) to[i] = p[i];
    return;
  }
  const uint16_t* p = static_cast<const uint16_t*>(from) + at;
  const bool bf16 = dtype == tensor::DType::kBF16;
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const simd::Half h = simd::load_half(p + i);
    simd::store(to + i, bf16 ? simd::from_bf16(h) : simd::from_f16(h));
  }
  if (i == n) return;
  uint16_t tail[kLanes] = {};
  float wide[kLanes];
  for (int32_t j = i; j < n; ++j) tail[j - i] = p[j];
  const simd::Half h = simd::load_half(tail);
  simd::store(wide, bf16 ? simd::from_bf16(h) : simd::from_f16(h));
  for (int32_t j = i; j < n; ++j) to[j] = wide[j - i];
}

// n floats to elements [at, at + n) of `to`.
inline void store_row(const float* from, int32_t n, tensor::DType dtype, void* to, int64_t at) {
  if (dtype == tensor::DType::kF32) {
    float* p = static_cast<float*>(to) + at;
    for (int32_t i = 0; i < n; ++i) p[i] = from[i];
    return;
  }
  uint16_t* p = static_cast<uint16_t*>(to) + at;
  const bool bf16 = dtype == tensor::DType::kBF16;
  for (int32_t i = 0; i < n; i += kLanes) {  // `from` has room for whole vectors
    const simd::Vec v = simd::load(from + i);
    const simd::Half h = bf16 ? simd::to_bf16(v) : simd::to_f16(v);
    if (i + kLanes <= n) {
      simd::store_half(p + i, h);
    } else {
      uint16_t tail[kLanes];
      simd::store_half(tail, h);
      for (int32_t j = i; j < n; ++j) p[j] = tail[j - i];
    }
  }
}

// Four consecutive elements as float32.
template <tensor::DType kType>
ATTUNE_SIMD __m128 load4(const char* row, int32_t d) {
  if constexpr (kType == tensor::DType::kF32)
    return _mm_loadu_ps(reinterpret_cast<const float*>(row) + d);
  const __m128i h = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + 2 * int64_t{d}));
  if constexpr (kType == tensor::DType::kBF16)
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(h), 16));
  return _mm_cvtph_ps(h);
}

// Dims [d, d + 4) of 8 keys into 4 rows of `kt`. Rows i and i + 4 share a register, so that only
// shuffles within 128 bits are needed.
template <tensor::DType kType>
ATTUNE_SIMD void transpose_4x8(const char* const* rows, int32_t d, float* kt, int64_t stride) {
  const auto pair = [&](int i) __attribute__((always_inline)) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(load4<kType>(rows[i], d)),
                                load4<kType>(rows[i + 4], d), 1);
  };
  const __m256 r0 = pair(0), r1 = pair(1), r2 = pair(2), r3 = pair(3);
  const __m256 a = _mm256_unpacklo_ps(r0, r1), b = _mm256_unpackhi_ps(r0, r1);
  const __m256 c = _mm256_unpacklo_ps(r2, r3), e = _mm256_unpackhi_ps(r2, r3);
  _mm256_storeu_ps(kt, _mm256_shuffle_ps(a, c, 0x44));
  _mm256_storeu_ps(kt + stride, _mm256_shuffle_ps(a, c, 0xee));
  _mm256_storeu_ps(kt + 2 * stride, _mm256_shuffle_ps(b, e, 0x44));
  _mm256_storeu_ps(kt + 3 * stride, _mm256_shuffle_ps(b, e, 0xee));
}

// Keys of `dim` elements for the score kernel: kt[key / kLanes][d][key % kLanes], a panel of whole
// vectors after the other, so that each is read in one stream. Columns beyond n repeat the last
// key. Meanwhile reads ahead in `next`, [kBlock] rows or null: pages lie anywhere, so the hardware
// does not see the next one coming, and a burst of prefetches would wait instead of overlap.
template <tensor::DType kType>
void transpose_keys_of(const char* const* rows, const char* const* next, int n, int32_t dim,
                       float* kt) {
  constexpr int kPerLine = kType == tensor::DType::kF32 ? 16 : 32;
  const int whole = (n + kLanes - 1) / kLanes * kLanes;
  for (int k = 0; k < whole; k += 8) {
    float* const panel = kt + int64_t{k / kLanes} * dim * kLanes + k % kLanes;
    const char* eight[8];
    for (int i = 0; i < 8; ++i) eight[i] = rows[k + i < n ? k + i : n - 1];
    int32_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      if (next && d % kPerLine == 0)
        for (int i = 0; i < 8; ++i)
          _mm_prefetch(next[k + i] + int64_t{d} * (64 / kPerLine), _MM_HINT_T0);
      transpose_4x8<kType>(eight, d, panel + int64_t{d} * kLanes, kLanes);
    }
    for (; d < dim; ++d) {
      for (int i = 0; i < 8; ++i) {
        float value;
        load_row(eight[i], kType, d, 1, &value);
        panel[int64_t{d} * kLanes + i] = value;
      }
    }
  }
}

inline void transpose_keys(const char* const* rows, const char* const* next, int n,
                           tensor::DType dtype, int32_t dim, float* kt) {
  switch (dtype) {
    case tensor::DType::kF32:
      return transpose_keys_of<tensor::DType::kF32>(rows, next, n, dim, kt);
    case tensor::DType::kBF16:
      return transpose_keys_of<tensor::DType::kBF16>(rows, next, n, dim, kt);
    default:
      return transpose_keys_of<tensor::DType::kF16>(rows, next, n, dim, kt);
  }
}

}  // namespace
}  // namespace attune::attention::cpu
