// The measure that memory-bound kernels are compared with: on Hopper one thread of each
// multiprocessor keeps its shared memory full of bulk copies (200 KiB under way on each), elsewhere
// plain 16-byte loads.
#include <cuda_runtime.h>

#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"
#include "ops/gemm/cuda/bulk_copy.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kStages = 12, kStageBytes = 16384;
constexpr uint32_t kLoadThreads = 512;

__device__ __forceinline__ void request(const char* from, char* to, uint64_t* barrier) {
  gemm::barrier_expect(barrier, kStageBytes);
  gemm::copy_row(to, from, kStageBytes, barrier);
}

// Tiles of kStageBytes, a contiguous share for each CTA; what is left over is not read.
__global__ void __launch_bounds__(32) bulk_copies(BulkReadParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char stages[];
  __shared__ uint64_t barriers[kStages];
  device::pdl_wait();
  device::pdl_trigger();
  if (threadIdx.x != 0) return;
  for (uint64_t& barrier : barriers) gemm::barrier_init(&barrier);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const int64_t tiles = p.bytes / kStageBytes;
  int64_t tile = tiles * blockIdx.x / gridDim.x;
  const int64_t end = tiles * (blockIdx.x + 1) / gridDim.x;
  const char* from = static_cast<const char*>(p.data);
  int64_t asked = tile;
  for (uint32_t s = 0; s < kStages && asked < end; ++s, ++asked)
    request(from + asked * kStageBytes, stages + s * kStageBytes, &barriers[s]);
  for (uint32_t s = 0, parity = 0; tile < end; ++tile) {
    gemm::barrier_wait(&barriers[s], parity);
    if (asked < end) {
      request(from + asked * kStageBytes, stages + s * kStageBytes, &barriers[s]);
      ++asked;
    }
    if (++s == kStages) {
      s = 0;
      parity ^= 1;
    }
  }
#endif
}

__global__ void __launch_bounds__(kLoadThreads) loads(BulkReadParams p) {
  constexpr int kUnroll = 8;
  device::pdl_wait();
  device::pdl_trigger();
  const uint4* words = static_cast<const uint4*>(p.data);
  const int64_t count = p.bytes / 16, stride = int64_t{gridDim.x} * blockDim.x;
  uint32_t all = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += kUnroll * stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      v[u] = i + u * stride < count ? __ldcs(words + i + u * stride) : uint4{};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) all ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (all == static_cast<uint32_t>(p.unlikely)) *p.sink = 1;
}

}  // namespace

void bulk_read(const BulkReadParams& p, Stream& stream) {
  int device = 0, processors = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  const auto blocks = static_cast<uint32_t>(processors);
  if (major >= 9) {
    constexpr uint32_t kShared = kStages * kStageBytes;
    cudaFuncSetAttribute(bulk_copies, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    device::launch_kernel(stream, "bulk_read",
                          {.grid = blocks, .block = 32, .shared_bytes = kShared},
                          {{"bytes", p.bytes}}, bulk_copies, p);
  } else {
    device::launch_kernel(stream, "bulk_read", {.grid = 2 * blocks, .block = kLoadThreads},
                          {{"bytes", p.bytes}}, loads, p);
  }
}

}  // namespace attune::ops::cuda
