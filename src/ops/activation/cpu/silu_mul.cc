#include "ops/cpu_kernels.h"
#include "ops/simd/vec.h"

namespace attune::ops::cpu {
namespace {

using simd::kLanes;
using simd::Vec;

Vec silu_times(Vec gate, Vec up) {
  return gate / (simd::set1(1.0f) + simd::exp(simd::zero() - gate)) * up;
}

void row_f32(const float* gate, const float* up, int n, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    simd::store(out + i, silu_times(simd::load(gate + i), simd::load(up + i)));
  if (i < n) {
    const simd::Mask m = simd::first(n - i);
    simd::store(out + i, silu_times(simd::load(gate + i, m), simd::load(up + i, m)), m);
  }
}

void row_bf16(const float* gate, const float* up, int n, uint16_t* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    simd::store_half(out + i, simd::to_bf16(silu_times(simd::load(gate + i), simd::load(up + i))));
  if (i < n) {
    const simd::Mask m = simd::first(n - i);
    uint16_t tail[kLanes];
    simd::store_half(tail,
                     simd::to_bf16(silu_times(simd::load(gate + i, m), simd::load(up + i, m))));
    for (int j = 0; i + j < n; ++j) out[i + j] = tail[j];
  }
}

}  // namespace

void silu_mul(const SiluMulParams& p, Stream& stream) {
  for_rows(stream, p.rows, int64_t{p.n} * 12, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = static_cast<const float*>(p.gate_up) + r * p.ldx;
      if (p.out_dtype == DType::kF32) {
        row_f32(gate, gate + p.n, p.n, static_cast<float*>(p.out) + r * p.ldo);
      } else {
        row_bf16(gate, gate + p.n, p.n, static_cast<uint16_t*>(p.out) + r * p.ldo);
      }
    }
  });
}

}  // namespace attune::ops::cpu
