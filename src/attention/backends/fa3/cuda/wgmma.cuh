// Hopper's asynchronous products as attention needs them: queries by keys, both in shared memory,
// and weights in registers by values, whose rows are keys; beside them copies of boxes of three and
// four dimensions, and what a CTA of several roles needs. Instructions and layouts: PTX ISA,
// "Asynchronous Warpgroup Level Matrix Instructions". Only in code for sm_90a.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "attention/backends/fa3/cuda/ptx.cuh"
#include "ops/gemm/cuda/wgmma.cuh"

namespace attune::attention::fa3 {

using ops::gemm::hold;
using ops::gemm::wgmma_commit;
using ops::gemm::wgmma_fence;
using ops::gemm::wgmma_wait;

// Bytes of a row of a piece (64 elements); pieces of a matrix follow each other, each swizzled by
// 128 bytes and aligned to 1,024.
inline constexpr int kPieceRow = 128;

// The lower halves of operands' descriptors (the upper half is the same for all: groups of eight
// rows 1,024 bytes apart, swizzled by 128 bytes). A product's operand that lies row by row along
// the summed dimension: queries, keys. A step of 16 along it is 32 bytes.
__device__ __forceinline__ uint32_t operand_along(uint32_t address) {
  return uint32_t{1} << 16 | (address & 0x3ffff) >> 4;
}
// One whose rows are the summed dimension: values. Its pieces lie `piece_bytes` apart; a step of 16
// keys is 16 rows.
__device__ __forceinline__ uint32_t operand_across(uint32_t address, uint32_t piece_bytes) {
  return (piece_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}
// `bytes` further, a multiple of 16.
__device__ __forceinline__ uint32_t operand_at(uint32_t operand, uint32_t bytes) {
  return operand + (bytes >> 4);
}

// clang-format off
#define ATTUNE_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define ATTUNE_16(c, i) ATTUNE_4(c, i), ATTUNE_4(c, i + 4), ATTUNE_4(c, i + 8), ATTUNE_4(c, i + 12)
#define ATTUNE_32(c) ATTUNE_16(c, 0), ATTUNE_16(c, 16)
#define ATTUNE_64(c) ATTUNE_32(c), ATTUNE_16(c, 32), ATTUNE_16(c, 48)
#define ATTUNE_R32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ATTUNE_R64 ATTUNE_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define ATTUNE_UPPER "0x40000040"
// Both from shared memory; `types` of the operands.
#define ATTUNE_SHARED(types, n, registers, of_a, of_b, of_add, ...)                                \
  asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %" of_add ", 0; mov.b64 a, {%" of_a  \
               ", " ATTUNE_UPPER "}; mov.b64 b, {%" of_b ", " ATTUNE_UPPER "}; "                   \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." types " {" registers               \
               "}, a, b, p, 1, 1, 0, 0;}"                                                          \
               : __VA_ARGS__ : "r"(a), "r"(b), "r"(add))
// The first from registers, the second's rows along the sum.
#define ATTUNE_REGISTERS(types, n, registers, a0, a1, a2, a3, of_b, of_add, ...)                   \
  asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %" of_add ", 0; mov.b64 b, {%" of_b     \
               ", " ATTUNE_UPPER "}; wgmma.mma_async.sync.aligned.m64n" n                          \
               "k16.f32." types " {" registers "}, {%" a0 ",%" a1 ",%" a2 ",%" a3                  \
               "}, b, p, 1, 1, 1;}"                                                                \
               : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add))
// clang-format on

// c = a * b^T (+ c where `add`) of 16 along the sum, 64 rows of a by 128 rows of b. Of thread t of
// the warpgroup: c[4j + 2h + e] is row 16 (t / 32) + t % 32 / 4 + 8h, column 8j + 2 (t % 4) + e.
// kF16: of binary16 instead of bfloat16.
template <bool kF16>
__device__ __forceinline__ void product_shared(float (&c)[64], uint32_t a, uint32_t b, int add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kF16) {
    ATTUNE_SHARED("f16.f16", "128", ATTUNE_R64, "64", "65", "66", ATTUNE_64(c));
  } else {
    ATTUNE_SHARED("bf16.bf16", "128", ATTUNE_R64, "64", "65", "66", ATTUNE_64(c));
  }
#endif
}

// c = a * b (+ c where `add`): a's rows as c's, thread t of a warp has in a[2k + h] row t / 4 + 8h,
// columns 8k + 2 (t % 4) and the next; b has 16 rows of kColumns (operand_across).
template <int kColumns, bool kF16>
__device__ __forceinline__ void product_registers(float (&c)[kColumns / 2], const uint32_t* a,
                                                  uint32_t b, int add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(kColumns == 128 || kColumns == 64);
  if constexpr (kColumns == 128 && kF16) {
    ATTUNE_REGISTERS("f16.f16", "128", ATTUNE_R64, "64", "65", "66", "67", "68", "69",
                     ATTUNE_64(c));
  } else if constexpr (kColumns == 128) {
    ATTUNE_REGISTERS("bf16.bf16", "128", ATTUNE_R64, "64", "65", "66", "67", "68", "69",
                     ATTUNE_64(c));
  } else if constexpr (kF16) {
    ATTUNE_REGISTERS("f16.f16", "64", ATTUNE_R32, "32", "33", "34", "35", "36", "37", ATTUNE_32(c));
  } else {
    ATTUNE_REGISTERS("bf16.bf16", "64", ATTUNE_R32, "32", "33", "34", "35", "36", "37",
                     ATTUNE_32(c));
  }
#endif
}
#undef ATTUNE_4
#undef ATTUNE_16
#undef ATTUNE_32
#undef ATTUNE_64
#undef ATTUNE_R32
#undef ATTUNE_R64
#undef ATTUNE_UPPER
#undef ATTUNE_SHARED
#undef ATTUNE_REGISTERS

// The compiler shall not move what makes a product's weights behind its issue.
template <int kCount>
__device__ __forceinline__ void hold(uint32_t (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(c[i])::"memory");
}

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int c0, int c1,
                                         int c2, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(shared_address(barrier))
      : "memory");
#endif
}
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int c0, int c1,
                                         int c2, int c3, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(barrier))
      : "memory");
#endif
}
// A thread's copy_16() since it last did so make a group; waits until but kLeft groups are there.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
// Barriers by number, 0 is __syncthreads's; `threads` of those that wait and that arrive.
__device__ __forceinline__ void named_wait(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ uint4 load_16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_16(uint32_t address, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}

// Four 8x8 matrices of 16-bit numbers, of which lane i tells the address of row i % 8 of matrix
// i / 8; lane 4g + t has 2t, 2t + 1 of row g of each.
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t r0, uint32_t r1,
                                               uint32_t r2, uint32_t r3) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
#endif
}

}  // namespace attune::attention::fa3
