// Rows of floats to and from the types that activations and caches have. For .cc files of CPU code.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/simd/vec.h"
#include "tensor/dtype.h"
#include "tensor/half.h"

namespace attune::ops::cpu {

// Caches of 8 bits hold no infinity: what is too large becomes the largest finite number, so that
// one outlier does not become NaN in a softmax. NaN stays NaN.
inline uint8_t saturating_f8e5m2(float x) {
  const uint8_t v = tensor::f32_to_f8e5m2(x);
  return (v & 0x7f) == 0x7c ? uint8_t(v - 1) : v;
}

// x to float32, bfloat16, float16 or, saturating, 8-bit floats.
inline void convert_row(const float* x, int64_t n, tensor::DType dtype, void* to) {
  if (dtype == tensor::DType::kF32) {
    std::memcpy(to, x, static_cast<size_t>(n) * 4);
    return;
  }
  if (tensor::dtype_info(dtype).block_bytes == 1) {
    auto* out = static_cast<uint8_t*>(to);
    const bool e4m3 = dtype == tensor::DType::kF8E4M3;
    for (int64_t i = 0; i < n; ++i)
      out[i] = e4m3 ? tensor::f32_to_f8e4m3(x[i]) : saturating_f8e5m2(x[i]);
    return;
  }
  auto* out = static_cast<uint16_t*>(to);
  const bool bf16 = dtype == tensor::DType::kBF16;
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    const simd::Vec v = simd::load(x + i);
    simd::store_half(out + i, bf16 ? simd::to_bf16(v) : simd::to_f16(v));
  }
  for (; i < n; ++i) out[i] = bf16 ? tensor::f32_to_bf16(x[i]) : tensor::f32_to_f16(x[i]);
}

// The same types to float32.
inline void widen_row(const void* x, tensor::DType dtype, int64_t n, float* out) {
  if (dtype == tensor::DType::kF32) {
    std::memcpy(out, x, static_cast<size_t>(n) * 4);
    return;
  }
  if (tensor::dtype_info(dtype).block_bytes == 1) {
    const auto* in = static_cast<const uint8_t*>(x);
    const bool e4m3 = dtype == tensor::DType::kF8E4M3;
    for (int64_t i = 0; i < n; ++i)
      out[i] = e4m3 ? tensor::f8e4m3_to_f32(in[i]) : tensor::f8e5m2_to_f32(in[i]);
    return;
  }
  const auto* in = static_cast<const uint16_t*>(x);
  const bool bf16 = dtype == tensor::DType::kBF16;
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    const simd::Half h = simd::load_half(in + i);
    simd::store(out + i, bf16 ? simd::from_bf16(h) : simd::from_f16(h));
  }
  for (; i < n; ++i) out[i] = bf16 ? tensor::bf16_to_f32(in[i]) : tensor::f16_to_f32(in[i]);
}

}  // namespace attune::ops::cpu
