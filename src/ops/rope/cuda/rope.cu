#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// Grid: tokens, pieces of a token's pairs. A thread reads and writes one pair, so that out may be
// x.
template <typename Out>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeParams p) {
  pdl_trigger();
  pdl_wait();
  const int32_t half = p.rot_dim / 2;
  const auto index = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  const int64_t token = blockIdx.x;
  const int32_t head = index / half, i = index % half;
  if (head >= p.heads) return;
  const float* x = p.x + token * p.ldx + head * p.head_stride;
  Out* out = static_cast<Out*>(p.out) + token * p.ldo + head * p.out_head_stride;
  const float cos = p.cos[token * half + i], sin = p.sin[token * half + i];
  const bool halves = p.style == RopeStyle::kHalf;
  const int32_t first = halves ? i : 2 * i, second = halves ? i + half : 2 * i + 1;
  const float a = x[first], b = x[second];
  out[first] = from_float<Out>(a * cos - b * sin);
  out[second] = from_float<Out>(b * cos + a * sin);
}

}  // namespace

void rope(const RopeParams& p, Stream& stream) {
  const int64_t pairs = int64_t{p.heads} * (p.rot_dim / 2);  // of a token
  if (p.tokens == 0 || pairs == 0) return;
  launch_kernel(stream, "rope",
                {.grid = dim3(static_cast<uint32_t>(p.tokens),
                              static_cast<uint32_t>(ceil_div(pairs, kThreads))),
                 .block = dim3(kThreads)},
                {{"tokens", p.tokens}, {"heads", p.heads}, {"rot_dim", p.rot_dim}},
                p.out_dtype == DType::kBF16 ? rope_kernel<__nv_bfloat16> : rope_kernel<float>, p);
}

}  // namespace attune::ops::cuda
