// The tensor cores' product of 16x16 by 16x8, and codes as its operands.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attune::ops::gemm {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// c += a * b of bfloat16. Of lane 4g + t: a holds rows g (0, 2) and g + 8 (1, 3), k 2t, 2t + 1 and
// (2, 3) k 2t + 8, 2t + 9; b column g, the same k; c rows g (0, 1), g + 8 (2, 3), columns 2t,
// 2t + 1. Any other order of k will do, as long as a and b share it.
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Nibbles `at` and `at` + 4 of the word as bfloat16 128 + code: a number's lowest seven bits count
// by one there.
__device__ __forceinline__ uint32_t nibbles(uint32_t word, int at) {
  uint32_t pair;  // (word & mask) | bias in one instruction, which the compiler does not find
  asm("lop3.b32 %0, %1, %2, %3, 0xea;"
      : "=r"(pair)
      : "r"(word >> (4 * at)), "n"(0x000f000f), "r"(0x43004300));
  return pair;
}
// Four 8x8 matrices of bfloat16, of which lane i tells the address of row i % 8 of matrix i / 8;
// lane 4g + t has 2t, 2t + 1 of row g of each. Stays behind what waits for the data.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

inline constexpr float kNibbleBias = 128;
inline constexpr uint32_t kOnes = 0x3f803f80u;  // two bfloat16

__device__ __forceinline__ float2 halves(uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

}  // namespace attune::ops::gemm
