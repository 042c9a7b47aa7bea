// Bulk copies into shared memory and the barriers that tell their end; nothing below sm_90.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/gemm/cuda/mma.cuh"

namespace attune::ops::gemm {

// `arrivals` of a phase.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals = 1) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
#endif
}
// A weight passes once: it shall not push out of the L2 what is read again.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
// More than half of what a multiprocessor has: two CTAs of a launch on one would leave another
// without work.
inline constexpr int kLeastShared = 115 * 1024;

__device__ __forceinline__ void copy_bytes(void* to, const void* from, uint32_t bytes,
                                           uint64_t* barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}
// The same without the policy.
__device__ __forceinline__ void copy_row(void* to, const void* from, uint32_t bytes,
                                         uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#endif
}
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, int column, int row,
                                         uint64_t* barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::"
      "cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}
// The same without the policy.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, int column, int row,
                                         uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
#endif
}

}  // namespace attune::ops::gemm
