// A CTA takes a tile of weight rows as wide as makes all multiprocessors busy once, or a cluster of
// CTAs does, each a part of k: then rows of x are read from the L2 less often for each weight. A
// warp of its own requests blocks of 64 k of both, the weights' first ones before the wait for the
// kernel before; a warpgroup for each 64 rows of x multiplies. A cluster's sums go to the shared
// memory of the CTA that owns them, which adds them up in the order of k: the result is the same in
// every run.
#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

#include "device/cuda/launch.cuh"
#include "ops/gemm/cuda/batch.h"
#include "ops/gemm/cuda/bulk_copy.cuh"
#include "ops/gemm/cuda/layout.h"
#include "ops/gemm/cuda/tensor_map.h"
#include "ops/gemm/cuda/wgmma.cuh"

namespace attune::ops::gemm {
namespace {

constexpr int kBlockBytes = kBlockK * 2;  // of a row
constexpr int kMostStages = 16;
constexpr int kBarrierBytes = 1024;  // a stage's alignment

struct Shape {
  BatchParams p;
  int32_t blocks;  // of k
  int32_t tiles;
  int32_t stages;
  int32_t cluster;
  bool spread;
  CUtensorMap w, x;
};

__device__ __forceinline__ uint32_t remote(uint32_t address, uint32_t cta) {
  uint32_t there = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
#endif
  return there;
}
__device__ __forceinline__ void store_remote(uint32_t address, const float* v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]),
               "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
#endif
}
__device__ __forceinline__ void arrive_remote(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
#endif
}
// What other CTAs of the cluster wrote before their arrivals is there.
__device__ __forceinline__ void wait_for_cluster(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(shared_address(barrier))
        : "memory");
#endif
}
__device__ __forceinline__ void cluster_starts() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#endif
}

// kTile weight rows at a time, kGroups * 64 rows of x.
template <int kTile, int kGroups>
struct Kernel {
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kStageBytes = (kTile + kGroups * 64) * kBlockBytes;
  static constexpr int kQuads = kTile / 8;  // of a thread's sums: four each

  // Of a cluster's sums: those that this CTA owns, of every CTA.
  static constexpr int exchange_bytes(int cluster) {
    return cluster == 1 ? 0 : cluster * ((kQuads + cluster - 1) / cluster) * kConsumers * 16;
  }

  // Sums 4 quad .. 4 quad + 3 into y.
  static __device__ void store(const Shape& s, int tile, int quad, const float (&c)[4]) {
    const BatchParams& p = s.p;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t n = tile * int64_t{kTile} + quad * 8 + lane % 4 * 2;
    if (n >= p.n) return;
    const bool both = n + 1 < p.n;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int m = warp * 16 + lane / 4 + h * 8;
      if (m >= p.m) continue;
      const int64_t at = m * p.ldy + n;
      const float2 v{c[h * 2], c[h * 2 + 1]};
      if (p.y_bf16) {
        auto* y = static_cast<__nv_bfloat16*>(p.y) + at;
        if (both && reinterpret_cast<uint64_t>(y) % 4 == 0) {
          *reinterpret_cast<__nv_bfloat162*>(y) = __float22bfloat162_rn(v);
        } else {
          y[0] = __float2bfloat16(v.x);
          if (both) y[1] = __float2bfloat16(v.y);
        }
      } else {
        auto* y = static_cast<float*>(p.y) + at;
        if (p.accumulate) {  // nobody waits for a result, and nobody else adds there
          atomicAdd(y, v.x);
          if (both) atomicAdd(y + 1, v.y);
        } else if (both && reinterpret_cast<uint64_t>(y) % 8 == 0) {
          *reinterpret_cast<float2*>(y) = v;
        } else {
          y[0] = v.x;
          if (both) y[1] = v.y;
        }
      }
    }
  }

  // Quad q is CTA q % cluster's.
  static __device__ void exchange(const Shape& s, int tile, uint32_t rank, const float* sum,
                                  float4* here, uint64_t* there) {
    const int cluster = s.cluster, each = (kQuads + cluster - 1) / cluster;
    float4* mine = here + rank * each * kConsumers + threadIdx.x;
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad)
      store_remote(remote(shared_address(mine + quad / cluster * kConsumers), quad % cluster),
                   sum + quad * 4);
    __syncwarp();
    if (threadIdx.x % 32 < cluster) arrive_remote(remote(shared_address(there), threadIdx.x % 32));
    wait_for_cluster(there);
    for (int quad = rank; quad < kQuads; quad += cluster) {
      float c[4] = {};
#pragma unroll 4
      for (int i = 0; i < cluster; ++i) {
        const float4 v = here[(i * each + quad / cluster) * kConsumers + threadIdx.x];
        c[0] += v.x, c[1] += v.y, c[2] += v.z, c[3] += v.w;
      }
      store(s, tile, quad, c);
    }
  }
};

// Where in the ring the next block lies, and in which round.
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

template <int kTile, int kGroups>
__global__ void __launch_bounds__(Kernel<kTile, kGroups>::kThreads, 1)
    batch_kernel(const __grid_constant__ Shape s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using K = Kernel<kTile, kGroups>;
  extern __shared__ __align__(1024) uint8_t shared[];
  device::pdl_trigger();
  uint8_t* ring = shared;  // of stages: rows of the tile, then of x
  auto* full = reinterpret_cast<uint64_t*>(shared + s.stages * K::kStageBytes);
  uint64_t* empty = full + kMostStages;
  uint64_t* exchanged = empty + kMostStages;
  auto* sums = reinterpret_cast<float4*>(shared + s.stages * K::kStageBytes + kBarrierBytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t rank = blockIdx.x % s.cluster;
  const int first = s.blocks * rank / s.cluster, end = s.blocks * (rank + 1) / s.cluster;
  const int first_tile = blockIdx.x / s.cluster, step = gridDim.x / s.cluster;
  if (threadIdx.x == 0) {
    for (int i = 0; i < s.stages; ++i) {
      barrier_init(full + i);
      barrier_init(empty + i, K::kConsumers / 32);
    }
    barrier_init(exchanged, s.cluster * K::kConsumers / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (warp == K::kConsumers / 32) {
    const uint64_t policy = evict_first();
    const uint32_t bytes = (kTile + s.p.m) * kBlockBytes;
    const int span = end - first;
    const int turn = s.spread ? static_cast<int>(int64_t{span} * first_tile / step) : 0;
    const auto place = [&](int i) { return first + (i + turn) % span; };
    const auto request_weights = [&](Place at, int tile, int block) {
      barrier_expect(full + at.stage, bytes);
      copy_box(ring + at.stage * K::kStageBytes, &s.w, block * kBlockK, tile * kTile,
               full + at.stage, policy);
    };
    const auto request_rows = [&](Place at, int block) {
      copy_box(ring + at.stage * K::kStageBytes + kTile * kBlockBytes, &s.x, block * kBlockK, 0,
               full + at.stage);
    };
    // The first round of the ring, as far as its tile goes.
    const int ahead = min(s.stages, span);
    if (s.p.w_is_new) device::pdl_wait();
    if (lane == 0)
      for (int i = 0; i < ahead; ++i) request_weights({i, 0}, first_tile, place(i));
    __syncwarp();  // the cluster's barrier is for whole warps
    if (s.cluster > 1) cluster_starts();
    device::pdl_wait();
    if (lane == 0) {
      for (int i = 0; i < ahead; ++i) request_rows({i, 0}, place(i));
      Place at{ahead % s.stages, ahead == s.stages ? 1u : 0u};
      int i = ahead;
      bool fresh = ahead < s.stages;  // the round in which nobody has used the stages yet
      for (int tile = first_tile; tile < s.tiles; tile += step, i = 0)
        for (; i < span; ++i) {
          if (!fresh) barrier_wait(empty + at.stage, at.parity ^ 1);
          request_weights(at, tile, place(i));
          request_rows(at, place(i));
          at.next(s.stages);
          if (at.stage == 0) fresh = false;
        }
    }
    return;
  }

  if (s.cluster > 1) cluster_starts();
  device::pdl_wait();
  Place at;
  for (int tile = first_tile; tile < s.tiles; tile += step) {
    float sum[kTile / 2];
    Place before;
    for (int block = first; block < end; ++block) {
      const uint32_t stage = shared_address(ring) + at.stage * K::kStageBytes;
      barrier_wait(full + at.stage, at.parity);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kBlockK / 16; ++i)
        wgmma<kTile>(sum, matrix_of(stage + (kTile + warp / 4 * 64) * kBlockBytes + i * 32),
                     matrix_of(stage + i * 32), block > first || i > 0);
      wgmma_commit();
      if (block > first) {
        wgmma_wait<1>();
        if (lane == 0) barrier_arrive(empty + before.stage);
      }
      before = at;
      at.next(s.stages);
    }
    wgmma_wait<0>();
    hold(sum);
    if (lane == 0) barrier_arrive(empty + before.stage);
    if (s.cluster > 1) {
      K::exchange(s, tile, rank, sum, sums, exchanged);
      continue;
    }
#pragma unroll
    for (int quad = 0; quad < K::kQuads; ++quad)
      K::store(s, tile, quad,
               {sum[quad * 4], sum[quad * 4 + 1], sum[quad * 4 + 2], sum[quad * 4 + 3]});
  }
#else
  device::pdl_trigger();
  device::pdl_wait();
#endif
}

using Tiles = std::integer_sequence<int, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256>;

// use(integral_constant) of each.
template <int... kTile, typename Use>
void for_tiles(std::integer_sequence<int, kTile...>, Use use) {
  (use(std::integral_constant<int, kTile>()), ...);
}

// The tile whose CTAs read least: rows of x come from the L2, which costs less. 0: a cluster would
// have more than one tile, and the exchange's room is there once.
int tile_for(const BatchParams& p, int cluster, int clusters) {
  constexpr double kRowsCost = 0.25;
  int best = 0;
  double best_cost = 0;
  for_tiles(Tiles(), [&](int tile) {
    const int64_t tiles = (p.n + tile - 1) / tile, rounds = (tiles + clusters - 1) / clusters;
    if (cluster > 1 && rounds > 1) return;
    const double cost = static_cast<double>(rounds) * (tile + kRowsCost * p.m);
    if (best > 0 && cost >= best_cost) return;
    best_cost = cost;
    best = tile;
  });
  return best;
}

template <int kTile, int kGroups>
void launch(const BatchParams& p, const BatchTuning& tuning, int clusters, device::Stream& stream) {
  using K = Kernel<kTile, kGroups>;
  const int fixed = kBarrierBytes + K::exchange_bytes(tuning.cluster);
  Shape s{.p = p,
          .blocks = static_cast<int32_t>(blocks_of(p.k)),
          .tiles = (p.n + kTile - 1) / kTile,
          .stages = std::min((device::kMostSharedBytes - fixed) / K::kStageBytes, kMostStages),
          .cluster = tuning.cluster,
          .spread = tuning.spread};
  s.w = tensor_map(p.w, p.n, p.k, p.k, kTile);
  s.x = tensor_map(p.x, p.m, p.k, p.ldx, p.m);  // what the tile has below is never looked at
  device::launch_kernel(
      stream, "batch_linear",
      {.grid = static_cast<uint32_t>(std::min(s.tiles, clusters) * s.cluster),
       .block = K::kThreads,
       .shared_bytes = static_cast<uint32_t>(fixed + s.stages * K::kStageBytes),
       .cluster = static_cast<uint32_t>(s.cluster)},
      {{"n", p.n}, {"k", p.k}, {"m", p.m}, {"tile", kTile}, {"cluster", s.cluster}},
      batch_kernel<kTile, kGroups>, s);
}

// Calls use with the kernel's tile and groups.
template <typename Use>
void with_kernel(int m, int tile, Use use) {
  for_tiles(Tiles(), [&](auto of) {
    if (of != tile) return;
    if (m <= 64) {
      use(of, std::integral_constant<int, 1>());
    } else {
      use(of, std::integral_constant<int, 2>());
    }
  });
}

}  // namespace

BatchRoom prepare_batch(const device::DeviceInfo& info) {
  BatchRoom room;
#ifdef ATTUNE_HOPPER
  if (info.sm != 90) return room;
  for (const int m : {64, 128})
    for_tiles(Tiles(), [&](int tile) {
      with_kernel(m, tile, [](auto tile, auto groups) {
        cudaFuncSetAttribute(batch_kernel<tile, groups>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, device::kMostSharedBytes);
      });
    });
  room.clusters[0] = info.multiprocessors;
  for (int i = 1; i < 4; ++i) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {1u << i, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<uint32_t>(info.multiprocessors) >> i << i;
    config.blockDim = Kernel<64, 1>::kThreads;
    config.dynamicSmemBytes = device::kMostSharedBytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&room.clusters[i], batch_kernel<64, 1>, &config) ==
        cudaSuccess)
      continue;
    room.clusters[i] = 0;
    cudaGetLastError();  // else it is the next launch's
  }
#endif
  return room;
}

bool batch_linear(const BatchParams& p, const BatchTuning& tuning, const BatchRoom& room,
                  device::Stream& stream) {
  const int clusters = room.clusters[std::countr_zero(static_cast<uint32_t>(tuning.cluster))];
  if (clusters == 0 || tuning.cluster > blocks_of(p.k)) return false;
  const int tile = tile_for(p, tuning.cluster, clusters);
  if (tile == 0) return false;
  with_kernel(p.m, tile,
              [&](auto tile, auto groups) { launch<tile, groups>(p, tuning, clusters, stream); });
  return true;
}

}  // namespace attune::ops::gemm
