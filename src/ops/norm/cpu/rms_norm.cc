#include <cmath>

#include "ops/cpu_kernels.h"
#include "ops/simd/vec.h"
#include "tensor/half.h"

namespace attune::ops::cpu {
namespace {

using simd::kLanes;
using simd::Vec;

float sum_of_squares(const float* x, int n) {
  Vec acc[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int u = 0; u < 4; ++u) {
      const Vec v = simd::load(x + i + u * kLanes);
      acc[u] = simd::fma(v, v, acc[u]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = simd::load(x + i);
    acc[0] = simd::fma(v, v, acc[0]);
  }
  if (i < n) {
    const Vec v = simd::load(x + i, simd::first(n - i));
    acc[1] = simd::fma(v, v, acc[1]);
  }
  return simd::hsum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

// Multiplied in this order, as transformers does: first by the reciprocal root, then by the weight.
template <typename Out>
void norm_row(const float* x, const float* weight, float inv, int n, Out* out) {
  const Vec scale = simd::set1(inv);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec y = simd::load(x + i) * scale * simd::load(weight + i);
    if constexpr (sizeof(Out) == 4) {
      simd::store(out + i, y);
    } else {
      simd::store_half(out + i, simd::to_bf16(y));
    }
  }
  for (; i < n; ++i) {
    const float y = x[i] * inv * weight[i];
    if constexpr (sizeof(Out) == 4) {
      out[i] = y;
    } else {
      out[i] = tensor::f32_to_bf16(y);
    }
  }
}

}  // namespace

void rms_norm(const RmsNormParams& p, Stream& stream) {
  for_rows(stream, p.rows, int64_t{p.n} * 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = p.x + (p.picks ? p.picks[r] : r) * p.ldx;
      const float inv = 1.0f / std::sqrt(sum_of_squares(x, p.n) / float(p.n) + p.eps);
      if (p.out_dtype == DType::kF32) {
        norm_row(x, p.weight, inv, p.n, static_cast<float*>(p.out) + r * p.ldo);
      } else {
        norm_row(x, p.weight, inv, p.n, static_cast<uint16_t*>(p.out) + r * p.ldo);
      }
    }
  });
}

}  // namespace attune::ops::cpu
