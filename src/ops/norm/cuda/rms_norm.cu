#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kMaxThreads = 512;  // more warps take longer to sum up than they save

__device__ __forceinline__ const float* row_of_x(const RmsNormParams& p, int64_t row) {
  return p.x + (p.picks ? p.picks[row] : row) * p.ldx;
}

// One block per row, which stays in registers: kVecs float4 a thread. The weight is on its way
// before the kernel ahead has ended.
template <int kVecs, typename Out>
__global__ void __launch_bounds__(kMaxThreads) norm_row(RmsNormParams p, float inv_n) {
  __shared__ WarpSums<kMaxThreads / kWarp> sums;
  float weight[kVecs][4], x[kVecs][4];
  const int vecs = p.n / 4;
#pragma unroll
  for (int u = 0; u < kVecs; ++u) {
    const int i = static_cast<int>(threadIdx.x + u * blockDim.x);
    if (i < vecs) load(p.weight + i * 4, weight[u]);
  }
  pdl_trigger();
  pdl_wait();
  const int64_t row = blockIdx.x;
  const float* from = row_of_x(p, row);
#pragma unroll
  for (int u = 0; u < kVecs; ++u) {
    const int i = static_cast<int>(threadIdx.x + u * blockDim.x);
    if (i < vecs) load(from + i * 4, x[u]);
  }
  float sum = 0;
#pragma unroll
  for (int u = 0; u < kVecs; ++u)
    if (static_cast<int>(threadIdx.x + u * blockDim.x) < vecs)
      for (float v : x[u]) sum += v * v;
  const float inv = rsqrtf(block_sum(sum, sums) * inv_n + p.eps);
  Out* to = static_cast<Out*>(p.out) + row * p.ldo;
#pragma unroll
  for (int u = 0; u < kVecs; ++u) {
    const int i = static_cast<int>(threadIdx.x + u * blockDim.x);
    if (i >= vecs) continue;
#pragma unroll
    for (int k = 0; k < 4; ++k) x[u][k] = x[u][k] * inv * weight[u][k];
    store(x[u], to + i * 4);
  }
}

// Any width and alignment.
template <typename Out>
__global__ void __launch_bounds__(kMaxThreads) norm_any_row(RmsNormParams p, float inv_n) {
  __shared__ WarpSums<kMaxThreads / kWarp> sums;
  pdl_trigger();
  pdl_wait();
  const int64_t row = blockIdx.x;
  const float* x = row_of_x(p, row);
  float sum = 0;
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) sum += x[i] * x[i];
  const float inv = rsqrtf(block_sum(sum, sums) * inv_n + p.eps);
  Out* to = static_cast<Out*>(p.out) + row * p.ldo;
  for (int i = threadIdx.x; i < p.n; i += blockDim.x)
    to[i] = from_float<Out>(x[i] * inv * p.weight[i]);
}

template <typename Out>
void launch(const RmsNormParams& p, Stream& stream) {
  const bool aligned = all_multiples(16, {address(p.x), address(p.weight)}) &&
                       all_multiples(4 * sizeof(Out), {address(p.out)}) &&
                       all_multiples(4, {p.n, p.ldx, p.ldo});
  const int64_t vecs = p.n / 4;
  auto* kernel = norm_any_row<Out>;
  int64_t each = 8;
  if (aligned && vecs <= 2 * kMaxThreads) {
    kernel = norm_row<2, Out>;
    each = 2;
  } else if (aligned && vecs <= 4 * kMaxThreads) {
    kernel = norm_row<4, Out>;
    each = 4;
  } else if (aligned && vecs <= 8 * kMaxThreads) {
    kernel = norm_row<8, Out>;
  }
  const int64_t wanted = ceil_div(ceil_div(vecs, each), kWarp) * kWarp;
  const auto threads = static_cast<uint32_t>(wanted < kWarp         ? kWarp
                                             : wanted > kMaxThreads ? kMaxThreads
                                                                    : wanted);
  launch_kernel(stream, "rms_norm",
                {.grid = dim3(static_cast<uint32_t>(p.rows)), .block = dim3(threads)},
                {{"rows", p.rows}, {"n", p.n}}, kernel, p, 1.0f / static_cast<float>(p.n));
}

}  // namespace

void rms_norm(const RmsNormParams& p, Stream& stream) {
  if (p.rows == 0) return;
  with_activation(p.out_dtype, [&](auto out) { launch<decltype(out)>(p, stream); });
}

}  // namespace attune::ops::cuda
