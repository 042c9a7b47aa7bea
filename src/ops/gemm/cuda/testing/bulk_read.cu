#include "device/cuda/launch.cuh"
#include "ops/gemm/cuda/testing/bulk_read.h"

namespace attune::ops::gemm::testing {
namespace {

constexpr int kStages = 12, kStageBytes = 16 << 10;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// One thread per multiprocessor keeps kStages copies in flight.
__global__ void bulk_read_kernel(const uint8_t* from, int64_t chunks) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ uint64_t full[kStages];
  for (int i = 0; i < kStages; ++i)
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(full + i)));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  device::pdl_wait();
  const int64_t mine = (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x;
  for (int64_t i = 0; i < mine + kStages; ++i) {
    const int at = static_cast<int>(i % kStages);
    const uint32_t barrier = shared_address(full + at);
    if (i >= kStages) {
      uint32_t done = 0;
      while (!done)
        asm volatile(
            "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
            "p;}"
            : "=r"(done)
            : "r"(barrier), "r"(static_cast<uint32_t>(i / kStages - 1) & 1)
            : "memory");
    }
    if (i >= mine) continue;
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(kStageBytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(ring + at * kStageBytes)),
        "l"(from + (blockIdx.x + i * gridDim.x) * kStageBytes), "r"(kStageBytes), "r"(barrier)
        : "memory");
  }
#endif
}

}  // namespace

void bulk_read(const void* from, int64_t bytes, const device::DeviceInfo& info,
               device::Stream& stream) {
  cudaFuncSetAttribute(bulk_read_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kStages * kStageBytes);
  device::launch_kernel(stream, "bulk_read",
                        {.grid = static_cast<uint32_t>(info.multiprocessors),
                         .block = 1,
                         .shared_bytes = kStages * kStageBytes},
                        {{"bytes", bytes}}, bulk_read_kernel, static_cast<const uint8_t*>(from),
                        bytes / kStageBytes);
}

}  // namespace attune::ops::gemm::testing
