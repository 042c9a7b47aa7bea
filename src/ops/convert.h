// Rows of floats to and from the types that activations and caches have. For .cc files of CPU code.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/simd/vec.h"
#include "tensor/dtype.h"
#include "tensor/half.h"

namespace attune::ops::cpu {

// x to float32, bfloat16 or float16.
inline void convert_row(const float* x, int64_t n, tensor::DType dtype, void* to) {
  if (dtype == tensor::DType::kF32) {
    std::memcpy(to, x, static_cast<size_t>(n) * 4);
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

// float32, bfloat16 or float16 to float32.
inline void widen_row(const void* x, tensor::DType dtype, int64_t n, float* out) {
  if (dtype == tensor::DType::kF32) {
    std::memcpy(out, x, static_cast<size_t>(n) * 4);
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
