// Attention of many queries on Hopper: producer warps fill rings of K and V tiles by the copy
// engine, box by box from the pages; two warpgroups of 64 rows multiply. While one does its softmax
// the other's products run (they hand a baton on), and each one's own products of the last weights
// run beside its softmax of the next scores, from a CTA's first tile to its last, across blocks.
// Shapes of the pipeline: FlashAttention-3 (arXiv:2407.08608).
//
// Rows are (token, head of the group), the head fastest, so that a tile's keys serve all heads that
// share them and the diagonal costs little. Tiles of keys count from a sequence's first key: what a
// row's bits are does not depend on its neighbours.
#pragma once

#include <type_traits>

#include "attention/backends/fa3/cuda/prefill_consumer.cuh"
#include "attention/backends/fa3/cuda/prefill_convert.cuh"
#include "device/cuda/launch.cuh"

namespace attune::attention::fa3 {

template <int kStages>
__device__ void prefill_ring_init(uint64_t* full, uint64_t* empty, int filling, int emptying) {
  for (int i = 0; i < kStages; ++i) {
    barrier_init(full + i, filling);
    barrier_init(empty + i, emptying);
  }
}

// Kv: bfloat16, binary16 or e4m3, the caches' type. kGather, not of e4m3: pages below
// kLeastBox tokens.
template <int kQkDim, int kVDim, typename Kv, bool kGather>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                   const __grid_constant__ CUtensorMap v, const __grid_constant__ PrefillParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = PrefillShape<kQkDim, kVDim, Kv>;
  static_assert(!Shape::kF8 || (kQkDim == kVDim && !kGather));
  extern __shared__ __align__(1024) uint8_t prefill_shared[];
  auto& barriers = *reinterpret_cast<PrefillBarriers*>(prefill_shared + Shape::kBarriers);
  if (threadIdx.x == 0) {
    constexpr int kConsumers = 8, kFollowers = Shape::kKWarps + Shape::kVWarps - 1;  // warps
    prefill_ring_init<Shape::kQStages>(barriers.q_full, barriers.q_empty,
                                       Shape::kF16 ? Shape::kVWarps : 1, kConsumers + kFollowers);
    for (int i = 0; i < Shape::kQStages; ++i) {
      barrier_init(barriers.item_full + i);
      if (Shape::kF16) barrier_init(barriers.q_raw + i);
    }
    constexpr int kArrivals = kGather ? 32 : 1;  // of a warp
    prefill_ring_init<Shape::kKStages>(barriers.k_full, barriers.k_empty,
                                       Shape::kKWarps * kArrivals, kConsumers);
    prefill_ring_init<Shape::kVStages>(barriers.v_full, barriers.v_empty,
                                       Shape::kVWarps * kArrivals, kConsumers);
    fence_barrier_init();
  }
  __syncthreads();
  device::pdl_wait();
  device::pdl_trigger();
  const uint32_t shared = shared_address(prefill_shared);
  constexpr int kFewer = Shape::kF8 ? 88 : kGather ? 72 : 56;
  if (threadIdx.x < 128) {
    fewer_registers<kFewer>();
    using Producer = std::conditional_t<Shape::kF8, PrefillConverter<kQkDim>,
                                        PrefillProducer<kQkDim, kVDim, Kv, kGather>>;
    Producer(q, k, v, p, shared, barriers).run();
  } else {
    more_registers<(504 - kFewer) / 2>();
    PrefillConsumer<kQkDim, kVDim, Kv, kGather>(p, shared, barriers).run();
  }
#endif
}

}  // namespace attune::attention::fa3
