#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 256;

template <int N>
__global__ void __launch_bounds__(kThreads) soft_cap_kernel(SoftCapParams p) {
  pdl_trigger();
  pdl_wait();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= p.count) return;
  float x[N];
  load(p.x + i, x);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = p.cap * tanhf(x[k] / p.cap);
  store(x, p.x + i);
}

}  // namespace

void soft_cap(const SoftCapParams& p, Stream& stream) {
  if (p.count == 0) return;
  const bool packed = all_multiples(16, {address(p.x), p.count * 4});
  launch_kernel(stream, "soft_cap", blocks_for(packed ? p.count / 4 : p.count, kThreads),
                {{"count", p.count}}, packed ? soft_cap_kernel<4> : soft_cap_kernel<1>, p);
}

}  // namespace attune::ops::cuda
