// Instructions of Hopper's that the products' headers have not, and what all kernels here need.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "ops/gemm/cuda/bulk_copy.cuh"
#include "ops/gemm/cuda/mma.cuh"

namespace attune::attention::fa3 {

using ops::gemm::barrier_arrive;
using ops::gemm::barrier_expect;
using ops::gemm::barrier_init;
using ops::gemm::barrier_wait;
using ops::gemm::copy_row;
using ops::gemm::load_matrices;
using ops::gemm::shared_address;

// A slot that may be read: what a batch may not name becomes the padding slot.
__device__ __forceinline__ int32_t slot_or_padding(int32_t slot, int32_t num_slots) {
  return static_cast<uint32_t>(slot) < static_cast<uint32_t>(num_slots) ? slot : 0;
}

// Registers of a thread of this warpgroup from now on; all warps of it.
template <int kCount>
__device__ __forceinline__ void fewer_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ __forceinline__ void more_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// A box of a pool of (dim, token, part of the dims, head, slot): whole rows of tokens.
__device__ __forceinline__ void copy_page_box(void* to, const CUtensorMap* map, int token, int head,
                                              int slot, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(to)),
      "l"(map), "r"(0), "r"(token), "r"(0), "r"(head), "r"(slot), "r"(shared_address(barrier))
      : "memory");
#endif
}

// 16 bytes by this thread, and an arrival once all such copies of it before are there; the barrier
// has been told of the arrival from the start.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void arrive_when_copied(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Until all of this thread's are there: before it ends.
__device__ __forceinline__ void wait_for_all_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Barriers as above that are seen by the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Counts up, and returns what was there: what came before in this thread (and what it has seen)
// comes before, for all of the device, what comes after in the thread that counts next.
__device__ __forceinline__ int add_and_order(int* at) {
  int was;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(was) : "l"(at) : "memory");
  return was;
}

// What this thread wrote to shared memory comes before what the copy engine writes, or it or wgmma
// reads there next.
__device__ __forceinline__ void fence_async_proxy() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// load_matrices(), each 8x8 transposed: lane 4g + t has column g, rows 2t and 2t + 1.
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// An 8x8 matrix of 16-bit elements transposed: lane 4g + t has 2t, 2t + 1 of row g, before and
// after.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// c += a * b, 16x16 by 16x8 (ops/gemm/cuda/mma.cuh tells who holds what), of bfloat16 or binary16.
template <bool kF16>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (kF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    ops::gemm::mma(c, a[0], a[1], a[2], a[3], b0, b1);
  }
}

// Two floats as the operands' type, the first in the lower half.
template <bool kF16>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (kF16) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// Two bfloat16 as binary16; what is too large becomes the largest finite, NaN stays NaN.
__device__ __forceinline__ uint32_t to_half(uint32_t pair) {
  const float2 x = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  uint32_t out = 0;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(x.y), "f"(x.x));
#endif
  return out;
}

// Two e4m3 (in the lower half of `codes`) as binary16.
__device__ __forceinline__ uint32_t from_e4m3(uint16_t codes) {
  uint32_t pair = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
#endif
  return pair;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh(x ln 2 / 2), which is 1 - 2 / (2^x + 1), to about 2e-7; NaN stays NaN.
__device__ __forceinline__ float tanh_half_base2(float x) {
  return 1 - __fdividef(2, exp2_fast(x) + 1);
}

}  // namespace attune::attention::fa3
