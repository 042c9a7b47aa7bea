// The rotation itself, for the ops that rotate. For .cc files of CPU code.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace attune::ops::cpu {

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
