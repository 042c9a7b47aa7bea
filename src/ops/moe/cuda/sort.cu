#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kMaxThreads = 1024;

// Of all threads, in every thread. `partials`: shared, [kMaxThreads / kWarp].
__device__ int32_t block_total(int32_t v, int32_t* partials) {
  v = __reduce_add_sync(~0u, v);
  if (threadIdx.x % kWarp == 0) partials[threadIdx.x / kWarp] = v;
  __syncthreads();
  int32_t sum = 0;
  for (uint32_t w = 0; w < blockDim.x / kWarp; ++w) sum += partials[w];
  __syncthreads();
  return sum;
}

constexpr int kAtOnce = 8;  // ids that a thread loads before it looks at them

// -1 behind the end.
__device__ __forceinline__ void load_ids(const int32_t* from, int64_t i, int64_t end,
                                         int32_t (&ids)[kAtOnce]) {
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) ids[u] = i + u * kWarp < end ? from[i + u * kWarp] : -1;
}

// A block per expert: its first row is the number of pairs of lower experts, and its pairs follow
// in order. Every block reads all ids, which the L2 cache holds; none waits for another. A warp has
// a run of neighbours.
__global__ void __launch_bounds__(kMaxThreads) sort_kernel(MoeSortParams p) {
  __shared__ int32_t partials[kMaxThreads / kWarp], of_warp[kMaxThreads / kWarp];
  pdl_trigger();
  pdl_wait();
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarp);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const int32_t warps = static_cast<int32_t>(blockDim.x) / kWarp;
  const int64_t pairs = int64_t{p.tokens} * p.top_k;
  const int64_t run = (pairs + warps * kWarp - 1) / (warps * kWarp) * kWarp;
  const int64_t begin = warp * run, end = begin + run < pairs ? begin + run : pairs;
  int32_t below = 0, mine = 0;
  for (int64_t i = begin + lane; i < end; i += kAtOnce * kWarp) {
    int32_t ids[kAtOnce];
    load_ids(p.ids, i, end, ids);
#pragma unroll
    for (int32_t id : ids) {
      below += id >= 0 && id < expert;
      mine += id == expert;
    }
  }
  mine = __reduce_add_sync(~0u, mine);
  if (lane == 0) of_warp[warp] = mine;
  below = block_total(below, partials);
  int32_t row = below, all = below;
  for (int32_t w = 0; w < warps; ++w) {
    if (w < warp) row += of_warp[w];
    all += of_warp[w];
  }
  if (threadIdx.x == 0) {
    p.offsets[expert] = below;
    if (expert == p.experts - 1) p.offsets[p.experts] = all;
  }
  if (mine == 0) return;
  for (int64_t base = begin; base < end; base += kAtOnce * kWarp) {
    int32_t ids[kAtOnce];
    load_ids(p.ids, base + lane, end, ids);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const uint32_t hits = __ballot_sync(~0u, ids[u] == expert);
      if (ids[u] == expert) {
        const int64_t i = base + u * kWarp + lane;
        const int32_t at = row + __popc(hits & ((1u << lane) - 1));
        p.row_of_pair[i] = at;
        p.token_of_row[at] = static_cast<int32_t>(i / p.top_k);
      }
      row += __popc(hits);
    }
  }
}

}  // namespace

void moe_sort(const MoeSortParams& p, Stream& stream) {
  const int64_t pairs = int64_t{p.tokens} * p.top_k;
  const int64_t wanted = ceil_div(pairs, 4 * kWarp) * kWarp;  // four pairs a thread
  const auto threads = static_cast<uint32_t>(wanted < kWarp         ? kWarp
                                             : wanted > kMaxThreads ? kMaxThreads
                                                                    : wanted);
  launch_kernel(stream, "moe_sort",
                {.grid = dim3(static_cast<uint32_t>(p.experts)), .block = dim3(threads)},
                {{"tokens", p.tokens}, {"top_k", p.top_k}, {"experts", p.experts}}, sort_kernel, p);
}

}  // namespace attune::ops::cuda
