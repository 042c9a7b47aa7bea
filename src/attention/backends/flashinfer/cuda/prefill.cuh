// FlashInfer's FA2 kernels, without the instances that no GPU takes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <bit>

#include <flashinfer/utils.cuh>
// How many keys a block has at a time FlashInfer decides when it runs, by the GPU's shared memory,
// and so compiles four kernels for each tile. Those with 164 KiB or more (sm80, sm90, sm100) all
// come to the same one, which the smaller (sm86, sm89) can run too. Of heads of 256 it is sm80's.
#undef DISPATCH_NUM_MMA_KV
#define DISPATCH_NUM_MMA_KV(max_mma_kv, NUM_MMA_KV, ...)                                           \
  {                                                                                                \
    constexpr uint32_t kQueries = CTA_TILE_Q * HEAD_DIM_QK * sizeof(DTypeQ);                       \
    constexpr uint32_t kShared = 164 * 1024 / 2 - kQueries;                                        \
    constexpr uint32_t kMost =                                                                     \
        kShared / ((HEAD_DIM_QK + HEAD_DIM_VO) * 16 * NUM_WARPS_KV * sizeof(DTypeKV));             \
    constexpr uint32_t kOfRegisters = 8 / NUM_MMA_Q;                                               \
    constexpr uint32_t NUM_MMA_KV = ::std::bit_floor(kMost < kOfRegisters ? kMost : kOfRegisters); \
    static_cast<void>(max_mma_kv);                                                                 \
    __VA_ARGS__                                                                                    \
  }
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variant_helper.cuh>
