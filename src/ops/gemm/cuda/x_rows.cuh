// Rows of x on their way into shared memory.
#pragma once

#include "ops/gemm/cuda/bulk_copy.cuh"
#include "ops/gemm/cuda/gemv.h"

namespace attune::ops::gemm {

// k0 .. k0 + k of x into shared memory, with zeros up to a multiple of kPadTo. By the kThreads of
// the CTA; those who read it wait for `there` (kBulk) and the CTA's barrier.
template <bool kBulk, int kThreads, int kPadTo>
__device__ __forceinline__ void load_x(const GemvParams& p, int k0, int k, uint8_t* to, int stride,
                                       uint64_t* there) {
  const auto* x = static_cast<const uint16_t*>(p.x) + k0;
  const int pad = (kPadTo - k % kPadTo) % kPadTo / 2;  // pairs; k is even
  for (int i = threadIdx.x; i < p.m * pad; i += kThreads)
    reinterpret_cast<uint32_t*>(to + i / pad * stride + k * 2)[i % pad] = 0;
  const bool aligned = (reinterpret_cast<uint64_t>(x) | (p.ldx * 2)) % 16 == 0;
  if (kBulk && aligned) {
    if (threadIdx.x == 0) barrier_expect(there, p.m * k * 2);
    if (threadIdx.x / 32 != 0) return;
    __syncwarp();
    if (threadIdx.x < p.m)
      copy_row(to + threadIdx.x * stride, x + threadIdx.x * p.ldx, k * 2, there);
    return;
  }
  if (kBulk && threadIdx.x == 0) barrier_expect(there, 0);
  if (aligned) {
#pragma unroll 4
    for (int i = threadIdx.x; i < p.m * (k / 8); i += kThreads) {
      const int row = i / (k / 8), at = i % (k / 8);
      reinterpret_cast<uint4*>(to + row * stride)[at] =
          reinterpret_cast<const uint4*>(x + row * p.ldx)[at];
    }
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < p.m * k; i += kThreads)
      reinterpret_cast<uint16_t*>(to + i / k * stride)[i % k] = x[i / k * p.ldx + i % k];
  }
}

}  // namespace attune::ops::gemm
