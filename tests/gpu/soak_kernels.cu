#include "soak_kernels.h"

#include <cuda_runtime.h>

#include "device/cuda/launch.cuh"

namespace attune::soak {
namespace {

constexpr uint32_t kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    differences(const uint32_t* a, const uint32_t* b, int64_t words, uint64_t* differ) {
  device::pdl_wait();
  device::pdl_trigger();
  uint32_t mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x)
    mine += a[i] != b[i];
  if (mine > 0) atomicAdd(reinterpret_cast<unsigned long long*>(differ), mine);
}

__global__ void __launch_bounds__(kThreads)
    prepare(const int32_t* lengths, int32_t count, uint32_t seed, uint32_t* metadata,
            int64_t words) {
  device::pdl_wait();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x)
    metadata[i] = seed + 2654435761u * static_cast<uint32_t>(lengths[i % count] + i);
}

// Not a wait in it: that is the fault.
__global__ void __launch_bounds__(kThreads)
    consume(const uint32_t* metadata, uint32_t* out, int64_t words) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x)
    out[i] = __ldcg(metadata + i);
}

}  // namespace

void count_differences(device::Stream& stream, const uint32_t* a, const uint32_t* b, int64_t words,
                       uint64_t* differ) {
  device::launch_kernel(stream, "differences", {.grid = 264, .block = kThreads}, {{"words", words}},
                        differences, a, b, words, differ);
}

void run_without_wait(device::Stream& stream, const int32_t* lengths, int32_t count, uint32_t seed,
                      uint32_t* metadata, uint32_t* out, int64_t words) {
  device::launch_kernel(stream, "prepare", {.grid = 32, .block = kThreads}, {{"words", words}},
                        prepare, lengths, count, seed, metadata, words);
  device::launch_kernel(stream, "consume without wait", {.grid = 32, .block = kThreads},
                        {{"words", words}}, consume, static_cast<const uint32_t*>(metadata), out,
                        words);
}

}  // namespace attune::soak
