#include "ops/read/reader.h"

#include <cuda_runtime.h>

#include "device/cuda/launch.cuh"
#include "ops/gemm/cuda/bulk_copy.cuh"

namespace attune::ops {
namespace {

constexpr int kStages = 6, kTileBytes = 16384;
constexpr uint32_t kTaken = 8;  // tiles at a time

__device__ __forceinline__ void request(const char* from, char* to, uint64_t* barrier) {
  gemm::barrier_expect(barrier, kTileBytes);
  gemm::copy_row(to, from, kTileBytes, barrier);
}

__global__ void __launch_bounds__(32) read_tiles(ReaderParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char stages[];
  __shared__ uint64_t barriers[kStages];
  device::pdl_wait();
  device::pdl_trigger();
  if (threadIdx.x != 0) return;
  for (uint64_t& barrier : barriers) gemm::barrier_init(&barrier);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const auto tiles = static_cast<uint32_t>(p.bytes / kTileBytes);
  uint32_t tile = 0, left = 0;
  const auto ask = [&](int stage) {
    if (left == 0) {
      tile = atomicAdd(p.next, kTaken);
      left = kTaken;
    }
    if (tile >= tiles) return false;
    request(static_cast<const char*>(p.data) + int64_t{tile} * kTileBytes,
            stages + stage * kTileBytes, &barriers[stage]);
    ++tile;
    --left;
    return true;
  };
  int pending = 0;
  while (pending < kStages && ask(pending)) ++pending;
  bool more = pending == kStages;
  for (int s = 0, parity = 0; pending > 0; --pending) {
    gemm::barrier_wait(&barriers[s], parity);
    if (more && (more = ask(s))) ++pending;
    if (++s == kStages) {
      s = 0;
      parity ^= 1;
    }
  }
#endif
}

void read(const ReaderParams& p, device::Stream& stream) {
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  constexpr uint32_t kShared = kStages * kTileBytes;
  cudaFuncSetAttribute(read_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  device::launch_kernel(
      stream, "reader",
      {.grid = static_cast<uint32_t>(processors), .block = 32, .shared_bytes = kShared},
      {{"bytes", p.bytes}}, read_tiles, p);
}

}  // namespace

Reader cuda_reader() {
  return read;
}

}  // namespace attune::ops
