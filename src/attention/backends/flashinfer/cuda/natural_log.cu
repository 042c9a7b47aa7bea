// FlashInfer's LSE has base 2, and -5e4 in place of minus infinity (its math.cuh).
#include <cmath>

#include "attention/backends/flashinfer/natural_log.h"
#include "device/cuda/launch.cuh"

namespace attune::attention::flashinfer {
namespace {

constexpr int kThreads = 256;
constexpr float kNothing = -4e4f;  // below this no key was seen
constexpr float kLn2 = 0.69314718055994530942f;

__global__ void natural_log(float* lse, const int32_t* rows, int32_t heads) {
  device::pdl_wait();
  device::pdl_trigger();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < int64_t{*rows} * heads) lse[i] = lse[i] > kNothing ? lse[i] * kLn2 : -INFINITY;
}

}  // namespace

void launch_natural_log(device::Stream& stream, float* lse, const int32_t* rows, int32_t max_rows,
                        int32_t heads) {
  const int64_t n = int64_t{max_rows} * heads;
  if (n == 0) return;
  const auto blocks = static_cast<uint32_t>((n + kThreads - 1) / kThreads);
  device::launch_kernel(stream, "natural_log", {dim3(blocks), dim3(kThreads)}, {{"n", n}},
                        natural_log, lse, rows, heads);
}

}  // namespace attune::attention::flashinfer
