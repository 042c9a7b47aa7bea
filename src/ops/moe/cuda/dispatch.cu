// Rows of tokens into the experts' order, and back.
#include "ops/copy_rows.cuh"
#include "ops/cuda_kernels.h"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// Grid: tokens, pieces of a row.
template <int N>
__global__ void __launch_bounds__(kThreads) combine_kernel(MoeCombineParams p) {
  pdl_trigger();
  pdl_wait();
  const int64_t token = blockIdx.x;
  const int64_t i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  if (i >= p.n) return;
  float* out = p.out + token * p.ldo + i;
  float sum[N];
  load(out, sum);
  for (int32_t j = 0; j < p.top_k; ++j) {
    const int64_t pair = token * p.top_k + j;
    const float weight = p.weights[pair];
    float y[N];
    load(p.y + int64_t{p.row_of_pair[pair]} * p.n + i, y);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = fmaf(weight, y[k], sum[k]);
  }
  store(sum, out);
}

}  // namespace

void copy_rows(const CopyRowsParams& p, Stream& stream) {
  copy_rows_as_bytes(stream, "copy_rows", p.x, p.ldx, p.rows, p.count, p.row_bytes, p.out);
}

void moe_combine(const MoeCombineParams& p, Stream& stream) {
  if (p.tokens == 0 || p.n == 0) return;
  const bool packed =
      all_multiples(16, {address(p.y), address(p.out)}) && all_multiples(4, {p.n, p.ldo});
  const int64_t pieces = ceil_div(p.n, kThreads * (packed ? 4 : 1));
  launch_kernel(stream, "moe_combine",
                {.grid = dim3(static_cast<uint32_t>(p.tokens), static_cast<uint32_t>(pieces)),
                 .block = dim3(kThreads)},
                {{"tokens", p.tokens}, {"top_k", p.top_k}, {"n", p.n}},
                packed ? combine_kernel<4> : combine_kernel<1>, p);
}

}  // namespace attune::ops::cuda
