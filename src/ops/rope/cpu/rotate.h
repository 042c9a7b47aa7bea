// What the ops that write to the cache share: the norm's factor and the rotation. For .cc files of
// CPU code.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/ops.h"
#include "ops/simd/vec.h"

namespace attune::ops::cpu {

// 1 / sqrt(mean(x^2) + eps)
inline float inverse_rms(const float* x, int32_t n, float eps) {
  simd::Vec acc = simd::zero();
  int32_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) {
    const simd::Vec v = simd::load(x + i);
    acc = simd::fma(v, v, acc);
  }
  if (i < n) {
    const simd::Vec v = simd::load(x + i, simd::first(n - i));
    acc = simd::fma(v, v, acc);
  }
  return 1.0f / std::sqrt(simd::hsum(acc) / static_cast<float>(n) + eps);
}

// y = x rotated, `half` pairs.
inline void rotate_pairs(const float* __restrict x, const float* __restrict cos,
                         const float* __restrict sin, int32_t half, RopeStyle style,
                         float* __restrict y) {
  if (style == RopeStyle::kHalf) {
    for (int32_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      y[i] = a * cos[i] - b * sin[i];
      y[i + half] = b * cos[i] + a * sin[i];
    }
  } else {
    for (int32_t i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      y[2 * i] = a * cos[i] - b * sin[i];
      y[2 * i + 1] = b * cos[i] + a * sin[i];
    }
  }
}

}  // namespace attune::ops::cpu
