// Rows of tokens into the experts' order, and back.
#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// Grid: rows, pieces of a row. Strides and lengths are in units.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const Unit* x, int64_t ldx, const int32_t* rows, int64_t units, Unit* out) {
  pdl_trigger();
  pdl_wait();
  const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i < units) out[blockIdx.x * units + i] = x[rows[blockIdx.x] * ldx + i];
}

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
  if (p.count == 0 || p.row_bytes == 0) return;
  const auto launch = [&](auto unit) {  // as wide as all is aligned
    using Unit = decltype(unit);
    const int64_t units = p.row_bytes / int64_t{sizeof(Unit)};
    launch_kernel(stream, "copy_rows",
                  {.grid = dim3(static_cast<uint32_t>(p.count),
                                static_cast<uint32_t>(ceil_div(units, kThreads))),
                   .block = dim3(kThreads)},
                  {{"count", p.count}, {"row_bytes", p.row_bytes}}, copy_rows_kernel<Unit>,
                  static_cast<const Unit*>(p.x), p.ldx / int64_t{sizeof(Unit)}, p.rows, units,
                  static_cast<Unit*>(p.out));
  };
  const std::initializer_list<int64_t> all = {address(p.x), address(p.out), p.ldx, p.row_bytes};
  if (all_multiples(16, all)) return launch(uint4{});
  if (all_multiples(4, all)) return launch(uint32_t{});
  launch(uint8_t{});
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
