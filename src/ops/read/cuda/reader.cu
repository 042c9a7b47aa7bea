#include "ops/read/reader.h"

#include <cuda_runtime.h>

#include "device/cuda/launch.cuh"

namespace attune::ops {
namespace {

constexpr int kStages = 6, kTileBytes = 16384;
constexpr uint32_t kTaken = 8;  // tiles at a time

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void request(const char* from, char* to, uint64_t* barrier) {
  const uint32_t b = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(kTileBytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(kTileBytes), "r"(b)
      : "memory");
}
__device__ void await(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
}
#endif

__global__ void __launch_bounds__(32) read_tiles(ReaderParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char stages[];
  __shared__ uint64_t barriers[kStages];
  device::pdl_wait();
  device::pdl_trigger();
  if (threadIdx.x != 0) return;
  for (uint64_t& barrier : barriers)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier))
                 : "memory");
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
    await(&barriers[s], parity);
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
