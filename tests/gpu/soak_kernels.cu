#include "soak_kernels.h"

#include <cuda_runtime.h>

#include "device/cuda/launch.cuh"

namespace attune::soak {
namespace {

constexpr uint32_t kThreads = 256;

__device__ bool is_far(uint32_t a, uint32_t b) {
  const float x = __uint_as_float(a), y = __uint_as_float(b);
  return !(fabsf(x - y) <= 0x1p-6f * fmaxf(fabsf(x), fabsf(y)) + 0x1p-8f);
}

__global__ void __launch_bounds__(kThreads)
    differences(const uint32_t* a, const uint32_t* b, int64_t words, Differences* sum) {
  device::pdl_wait();
  device::pdl_trigger();
  uint32_t differ = 0, far = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    differ += a[i] != b[i];
    far += is_far(a[i] << 16, b[i] << 16) || is_far(a[i] & 0xffff0000u, b[i] & 0xffff0000u);
  }
  if (differ > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&sum->words), differ);
  if (far > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&sum->far), far);
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
                       Differences* sum) {
  device::launch_kernel(stream, "differences", {.grid = 264, .block = kThreads}, {{"words", words}},
                        differences, a, b, words, sum);
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
