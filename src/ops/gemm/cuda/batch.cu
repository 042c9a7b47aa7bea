// One CTA on every multiprocessor takes an equal share of the weight: of all blocks of 64 k by a
// tile of weight rows, tile after tile, a consecutive run ("stream-K", Osama et al. 2023), so that
// all end together whatever the shape. A warp of its own requests the blocks, the weights' first
// ones before the wait for the kernel before; two warpgroups multiply. A tile that several CTAs
// have parts of is added up at the end by all of them, each a share of its sums, in the order of
// the CTAs: the result is the same in every run.
#include <cuda.h>

#include <algorithm>
#include <type_traits>

#include "device/cuda/launch.cuh"
#include "ops/gemm/cuda/batch.h"
#include "ops/gemm/cuda/bulk_copy.cuh"
#include "ops/gemm/cuda/tensor_map.h"
#include "ops/gemm/cuda/wgmma.cuh"

namespace attune::ops::gemm {
namespace {

constexpr int kConsumers = 256;  // threads of two warpgroups
constexpr int kThreads = kConsumers + 32;
constexpr int kBlockBytes = kBlockK * 2;  // of a row
constexpr int kMostStages = 12;
constexpr int kBarrierBytes = 1024;
constexpr int kMostShared = 227 * 1024;
constexpr int kMostSums = 256 * 128;  // of a CTA: its tile's weight rows times rows of x

constexpr int64_t kCounterBytes = 1 << 20;

// Arrived at a tile's parts, and done with adding them up; zero between launches.
struct Counter {
  uint32_t arrived, departed;
};

struct Shape {
  BatchParams p;
  int32_t blocks;  // of k
  int64_t units;   // blocks of all tiles
  int32_t stages;
  float4* parts;  // [CTA, 2, sums / 4]: of the tile in which its share begins, and ends
  Counter* counters;  // [tiles]
  CUtensorMap w, x;
};

// A CTA's share: units [begin, end).
struct Shares {
  int64_t units;
  int64_t ctas;
  __device__ int64_t begin(int64_t cta) const { return units * cta / ctas; }
  __device__ int cta_of(int64_t unit) const {
    return static_cast<int>(((unit + 1) * ctas - 1) / units);
  }
};

__device__ __forceinline__ void consumers_wait() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

template <int kRows, int kTile>
struct Kernel {
  static constexpr int kStageBytes = (kTile + kRows) * kBlockBytes;
  static constexpr int kPerGroup = kTile / 128;              // 64 weight rows each
  static constexpr int kQuads = kPerGroup * kRows / 2 / 4;  // of a thread's sums

  // Sums c[0 .. 3] of a quad into y.
  static __device__ void store(const Shape& s, int64_t tile, int quad, const float (&c)[4]) {
    const BatchParams& p = s.p;
    const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int64_t row = tile * kTile + (group * kPerGroup + quad / (kRows / 8)) * 64 + warp * 16 +
                        lane / 4;
    const int column = quad % (kRows / 8) * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t n = row + i / 2 * 8;
      const int m = column + i % 2;
      if (n >= p.n || m >= p.m) continue;
      float v = c[i];
      if (p.bias) v += p.bias[n];
      const int64_t at = m * p.ldy + n;
      if (p.y_bf16) {
        static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16(v);
      } else {
        float* y = static_cast<float*>(p.y) + at;
        // Without a result nobody waits for it, and nobody else adds there.
        if (p.accumulate) {
          atomicAdd(y, v);
        } else {
          *y = v;
        }
      }
    }
  }

  static __device__ float4* part(const Shape& s, const Shares& shares, int64_t tile, int cta) {
    const bool begins = shares.begin(cta) / s.blocks == tile;
    return s.parts + (cta * int64_t{2} + (begins ? 0 : 1)) * (kTile * kRows / 4) + threadIdx.x;
  }

  // This CTA's share of the sums of a tile that others have parts of.
  static __device__ void add_up(const Shape& s, const Shares& shares, int64_t tile) {
    const int first = shares.cta_of(tile * s.blocks);
    const int count = shares.cta_of((tile + 1) * s.blocks - 1) - first + 1;
    Counter& counter = s.counters[tile];
    if (threadIdx.x == 0) {
      uint32_t arrived = 0;
      while (arrived != static_cast<uint32_t>(count))
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(arrived)
                     : "l"(&counter.arrived)
                     : "memory");
    }
    consumers_wait();
    for (int quad = blockIdx.x - first; quad < kQuads; quad += count) {
      float sum[4] = {};
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        const float4 v = __ldcg(part(s, shares, tile, first + i) + quad * kConsumers);
        sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
      }
      store(s, tile, quad, sum);
    }
    consumers_wait();
    if (threadIdx.x == 0 && atomicAdd(&counter.departed, 1) == static_cast<uint32_t>(count - 1))
      counter = {};
  }
};

template <int kRows, int kTile>
__global__ void __launch_bounds__(kThreads, 1) batch_kernel(const __grid_constant__ Shape s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using K = Kernel<kRows, kTile>;
  extern __shared__ __align__(1024) uint8_t shared[];
  device::pdl_trigger();
  uint8_t* ring = shared;  // of stages: the tile's rows, then those of x
  auto* full = reinterpret_cast<uint64_t*>(shared + s.stages * K::kStageBytes);
  uint64_t* empty = full + kMostStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Shares shares{s.units, gridDim.x};
  const int64_t begin = shares.begin(blockIdx.x);
  const int count = static_cast<int>(shares.begin(blockIdx.x + 1) - begin);
  if (threadIdx.x == 0) {
    for (int i = 0; i < s.stages; ++i) {
      barrier_init(full + i);
      barrier_init(empty + i, kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (warp == kConsumers / 32) {
    const uint64_t policy = evict_first();
    const auto request_weights = [&](int i) {
      const int64_t unit = begin + i;
      uint64_t* there = full + i % s.stages;
      barrier_expect(there, K::kStageBytes);
      copy_box(ring + i % s.stages * K::kStageBytes, &s.w,
               static_cast<int>(unit % s.blocks) * kBlockK,
               static_cast<int>(unit / s.blocks) * kTile, there, policy);
    };
    const auto request_rows = [&](int i) {
      copy_box(ring + i % s.stages * K::kStageBytes + kTile * kBlockBytes, &s.x,
               static_cast<int>((begin + i) % s.blocks) * kBlockK, 0, full + i % s.stages);
    };
    const int ahead = min(s.stages, count);
    if (lane == 0)
      for (int i = 0; i < ahead; ++i) request_weights(i);
    device::pdl_wait();
    if (lane == 0) {
      for (int i = 0; i < ahead; ++i) request_rows(i);
      for (int i = ahead; i < count; ++i) {
        barrier_wait(empty + i % s.stages, (i / s.stages + 1) & 1);
        request_weights(i);
        request_rows(i);
      }
    }
    return;
  }

  device::pdl_wait();
  const int group = warp / 4;
  int64_t split_first = -1, split_last = -1;  // tiles that others have parts of
  for (int i = 0; i < count;) {
    const int64_t tile = (begin + i) / s.blocks;
    const int first = static_cast<int>((begin + i) % s.blocks);
    const int some = min(s.blocks - first, count - i);
    float sum[K::kPerGroup][kRows / 2];
    for (int j = 0; j < some; ++j, ++i) {
      const int stage = i % s.stages;
      const uint32_t at = shared_address(ring) + stage * K::kStageBytes;
      barrier_wait(full + stage, (i / s.stages) & 1);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kBlockK / 16; ++step)
#pragma unroll
        for (int b = 0; b < K::kPerGroup; ++b)
          wgmma<kRows>(
              sum[b], matrix_of(at + (group * K::kPerGroup + b) * 64 * kBlockBytes + step * 32),
              matrix_of(at + kTile * kBlockBytes + step * 32), j > 0 || step > 0);
      wgmma_commit();
      if (j > 0) {
        wgmma_wait<1>();
        if (lane == 0) barrier_arrive(empty + (i - 1) % s.stages);
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < K::kPerGroup; ++b) hold(sum[b]);
    if (lane == 0) barrier_arrive(empty + (i - 1) % s.stages);
    float4* part = nullptr;
    if (some < s.blocks) part = K::part(s, shares, tile, blockIdx.x);
#pragma unroll
    for (int quad = 0; quad < K::kQuads; ++quad) {
      const float* from = sum[quad / (kRows / 8)] + quad % (kRows / 8) * 4;
      const float c[4] = {from[0], from[1], from[2], from[3]};
      if (part) {
        __stcg(part + quad * kConsumers, float4{c[0], c[1], c[2], c[3]});
      } else {
        K::store(s, tile, quad, c);
      }
    }
    if (!part) continue;
    (split_first < 0 ? split_first : split_last) = tile;
    __threadfence();
    consumers_wait();
    if (threadIdx.x == 0) atomicAdd(&s.counters[tile].arrived, 1);
  }
  if (split_first >= 0) K::add_up(s, shares, split_first);
  if (split_last >= 0) K::add_up(s, shares, split_last);
#else
  device::pdl_trigger();
  device::pdl_wait();
#endif
}

template <int kRows, int kTile>
void launch(const BatchParams& p, void* workspace, const device::DeviceInfo& info,
            device::Stream& stream, const BatchTuning& tuning) {
  constexpr int kStage = Kernel<kRows, kTile>::kStageBytes;
  Shape s{.p = p, .blocks = static_cast<int32_t>(blocks_of(p.k))};
  s.units = int64_t{s.blocks} * ((p.n + kTile - 1) / kTile);
  const int32_t room = (tuning.shared_bytes > 0 ? tuning.shared_bytes : kMostShared);
  s.stages = std::clamp((room - kBarrierBytes) / kStage, 2, kMostStages);
  s.counters = static_cast<Counter*>(workspace);
  s.parts = reinterpret_cast<float4*>(static_cast<char*>(workspace) + kCounterBytes);
  s.w = tensor_map(p.w, p.n, p.k, p.k, kTile);
  s.x = tensor_map(p.x, p.m, p.k, p.ldx, kRows);
  device::launch_kernel(
      stream, "batch_linear",
      {.grid = static_cast<uint32_t>(std::min<int64_t>(info.multiprocessors, s.units)),
       .block = kThreads,
       .shared_bytes = static_cast<uint32_t>(kBarrierBytes + s.stages * kStage)},
      {{"n", p.n}, {"k", p.k}, {"m", p.m}, {"stages", s.stages}}, batch_kernel<kRows, kTile>, s);
}

// Calls use with the rows and the tile of the smallest kernel that takes m rows.
template <typename Use>
void with_kernel(int m, int tile, Use use) {
  const auto at_most = [&](auto rows) {
    if constexpr (rows <= 128) {
      if (tile == 256) return use(rows, std::integral_constant<int, 256>());
    }
    use(rows, std::integral_constant<int, 128>());
  };
  switch ((m + 31) / 32) {
    case 1: return at_most(std::integral_constant<int, 32>());
    case 2: return at_most(std::integral_constant<int, 64>());
    case 3: return at_most(std::integral_constant<int, 96>());
    case 4: return at_most(std::integral_constant<int, 128>());
    case 5: return at_most(std::integral_constant<int, 160>());
    case 6: return at_most(std::integral_constant<int, 192>());
    case 7: return at_most(std::integral_constant<int, 224>());
    default: return at_most(std::integral_constant<int, 256>());
  }
}

}  // namespace

int64_t batch_workspace_bytes(const device::DeviceInfo& info) {
  return kCounterBytes + int64_t{info.multiprocessors} * 2 * kMostSums * 4;
}

bool prepare_batch(const device::DeviceInfo& info) {
#ifdef ATTUNE_HOPPER
  if (info.sm != 90) return false;
  for (int m = 32; m <= kBatchRows; m += 32)
    for (int tile : {128, 256})
      with_kernel(m, tile, [](auto rows, auto tile) {
        cudaFuncSetAttribute(batch_kernel<rows, tile>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kMostShared);
      });
  return true;
#else
  return false;
#endif
}

void batch_linear(const BatchParams& p, void* workspace, const device::DeviceInfo& info,
                  device::Stream& stream, const BatchTuning& tuning) {
  with_kernel(p.m, tuning.tile ? tuning.tile : 128, [&](auto rows, auto tile) {
    launch<rows, tile>(p, workspace, info, stream, tuning);
  });
}

}  // namespace attune::ops::gemm
