// Hopper's asynchronous product of a warpgroup: 64 rows of one operand by N of the other, both in
// shared memory, sums in registers. Instructions and layouts: PTX ISA, "Asynchronous Warpgroup
// Level Matrix Instructions". Only in code for sm_90a.
#pragma once

#include <cstdint>

#include "ops/gemm/cuda/mma.cuh"

namespace attune::ops::gemm {

// A matrix of rows of 64 bfloat16 (128 bytes) whose 16-byte pieces are exchanged by the row's
// number, as a tensor map with a swizzle of 128 bytes writes it; `address` of a row group of eight,
// aligned to 1,024 bytes, plus 32 bytes for each 16 k.
__device__ __forceinline__ uint64_t matrix_of(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroupStride = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroupStride | (uint64_t{1} << 16) | ((address & 0x3ffff) >> 4);
}

__device__ __forceinline__ void wgmma_fence() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until at most kPending groups run.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
// The compiler shall not move what touches a sum across the waits.
template <int kCount>
__device__ __forceinline__ void hold(float (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

// clang-format off
#define ATTUNE_8(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define ATTUNE_16(c, i) ATTUNE_8(c, i), ATTUNE_8(c, i + 8)
#define ATTUNE_32(c, i) ATTUNE_16(c, i), ATTUNE_16(c, i + 16)
#define ATTUNE_64(c, i) ATTUNE_32(c, i), ATTUNE_32(c, i + 32)
#define ATTUNE_R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define ATTUNE_R8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define ATTUNE_R24 ATTUNE_R0 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define ATTUNE_R1 ATTUNE_R0 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ATTUNE_R2 ATTUNE_R1 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define ATTUNE_R3 ATTUNE_R2 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define ATTUNE_R4 ATTUNE_R3 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define ATTUNE_R5 ATTUNE_R4 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define ATTUNE_R6 ATTUNE_R5 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define ATTUNE_R7 ATTUNE_R6 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ATTUNE_WGMMA(n, registers, of_a, of_b, of_add, ...)                                        \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" of_add ", 0; wgmma.mma_async.sync.aligned.m64n" n \
               "k16.f32.bf16.bf16 {" registers "}, %" of_a ", %" of_b ", p, 1, 1, 0, 0;}"          \
               : __VA_ARGS__ : "l"(a), "l"(b), "r"(add))
// clang-format on

// c = a * b^T (+ c where `add`), of 64 rows of a and kRows of b. Of thread t of the warpgroup:
// c[4j + 2h + e] is row 16 (t / 32) + t % 32 / 4 + 8h of a, row 8j + 2 (t % 4) + e of b.
template <int kRows>
__device__ __forceinline__ void wgmma(float (&c)[kRows / 2], uint64_t a, uint64_t b, int add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kRows == 16) {
    ATTUNE_WGMMA("16", ATTUNE_R8, "8", "9", "10", ATTUNE_8(c, 0));
  } else if constexpr (kRows == 32) {
    ATTUNE_WGMMA("32", ATTUNE_R0, "16", "17", "18", ATTUNE_16(c, 0));
  } else if constexpr (kRows == 48) {
    ATTUNE_WGMMA("48", ATTUNE_R24, "24", "25", "26", ATTUNE_16(c, 0), ATTUNE_8(c, 16));
  } else if constexpr (kRows == 64) {
    ATTUNE_WGMMA("64", ATTUNE_R1, "32", "33", "34", ATTUNE_32(c, 0));
  } else if constexpr (kRows == 96) {
    ATTUNE_WGMMA("96", ATTUNE_R2, "48", "49", "50", ATTUNE_32(c, 0), ATTUNE_16(c, 32));
  } else if constexpr (kRows == 128) {
    ATTUNE_WGMMA("128", ATTUNE_R3, "64", "65", "66", ATTUNE_64(c, 0));
  } else if constexpr (kRows == 160) {
    ATTUNE_WGMMA("160", ATTUNE_R4, "80", "81", "82", ATTUNE_64(c, 0), ATTUNE_16(c, 64));
  } else if constexpr (kRows == 192) {
    ATTUNE_WGMMA("192", ATTUNE_R5, "96", "97", "98", ATTUNE_64(c, 0), ATTUNE_32(c, 64));
  } else if constexpr (kRows == 224) {
    ATTUNE_WGMMA("224", ATTUNE_R6, "112", "113", "114", ATTUNE_64(c, 0), ATTUNE_32(c, 64),
                 ATTUNE_16(c, 96));
  } else {
    static_assert(kRows == 256);
    ATTUNE_WGMMA("256", ATTUNE_R7, "128", "129", "130", ATTUNE_64(c, 0), ATTUNE_64(c, 64));
  }
#endif
}
#undef ATTUNE_WGMMA
#undef ATTUNE_8
#undef ATTUNE_16
#undef ATTUNE_32
#undef ATTUNE_64
#undef ATTUNE_R8
#undef ATTUNE_R24
#undef ATTUNE_R0
#undef ATTUNE_R1
#undef ATTUNE_R2
#undef ATTUNE_R3
#undef ATTUNE_R4
#undef ATTUNE_R5
#undef ATTUNE_R6
#undef ATTUNE_R7

}  // namespace attune::ops::gemm
