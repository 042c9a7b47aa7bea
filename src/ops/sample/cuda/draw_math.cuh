// The functions on which the CPU's draws and the GPU's must agree.
#pragma once

#include <cstdint>

namespace attune::ops::cuda {

// exp(x) for x <= 0, 0 below -87: the CPU's polynomial (Cody-Waite reduction and Cephes' expf), so
// that the same logits have the same probabilities. Adding 1.5 * 2^23 rounds to a whole number, as
// rintf, whose bits are the sum's lowest: conversions have an eighth of an addition's rate.
__device__ __forceinline__ float exp_nonpositive(float x) {
  const float rounded = __fadd_rn(__fmul_rn(x, 1.44269504089f), 12582912.0f);
  const float n = rounded - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return x < -87.0f ? 0.0f : p * __uint_as_float((__float_as_uint(rounded) << 23) + (127u << 23));
}

// Philox4x32-10, as philox_uniform() of ops/sample/sample.h.
__device__ __forceinline__ double uniform(uint64_t seed, uint64_t position) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32), c2 = 0,
           c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t hi0 = __umulhi(0xD2511F53u, c0), lo0 = 0xD2511F53u * c0;
    const uint32_t hi1 = __umulhi(0xCD9E8D57u, c2), lo1 = 0xCD9E8D57u * c2;
    c0 = hi1 ^ c1 ^ k0;
    c2 = hi0 ^ c3 ^ k1;
    c1 = lo1;
    c3 = lo0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint64_t bits = (uint64_t{c1} << 32 | c0) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace attune::ops::cuda
