#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 128;

// As on the CPU: the angle is rounded to float32 as in transformers, its cosine and sine are exact.
__global__ void __launch_bounds__(kThreads) rope_table_kernel(RopeTableParams p) {
  pdl_trigger();
  pdl_wait();
  const int32_t half = p.rot_dim / 2;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{p.tokens} * half) return;
  const float angle = static_cast<float>(p.positions[i / half]) * p.inv_freq[i % half];
  double sin, cos;
  sincos(static_cast<double>(angle), &sin, &cos);
  p.cos[i] = static_cast<float>(cos) * p.magnitude;
  p.sin[i] = static_cast<float>(sin) * p.magnitude;
}

}  // namespace

void rope_table(const RopeTableParams& p, Stream& stream) {
  const int64_t entries = int64_t{p.tokens} * (p.rot_dim / 2);
  if (entries == 0) return;
  launch_kernel(stream, "rope_table", blocks_for(entries, kThreads),
                {{"tokens", p.tokens}, {"rot_dim", p.rot_dim}}, rope_table_kernel, p);
}

}  // namespace attune::ops::cuda
