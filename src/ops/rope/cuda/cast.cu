#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// Grid: rows, pieces of a row. A thread makes N neighbours of one head.
template <typename Out, int N>
__global__ void __launch_bounds__(kThreads) cast_kernel(CastParams p) {
  pdl_trigger();
  pdl_wait();
  const int64_t row = blockIdx.x;
  const auto at = static_cast<int32_t>((blockIdx.y * kThreads + threadIdx.x) * N);
  const int32_t head = at / p.n, i = at % p.n;
  if (head >= p.heads) return;
  float x[N];
  load(p.x + row * p.ldx + head * p.head_stride + i, x);
  store(x, static_cast<Out*>(p.out) + row * p.heads * p.n + at);
}

}  // namespace

void cast(const CastParams& p, Stream& stream) {
  const int64_t count = int64_t{p.heads} * p.n;  // of a row
  if (p.rows == 0 || count == 0) return;
  const bool packed = all_multiples(16, {address(p.x), address(p.out)}) &&
                      all_multiples(4, {p.ldx, p.head_stride, p.n});
  with_element(p.out_dtype, [&](auto out) {
    using Out = decltype(out);
    launch_kernel(
        stream, "cast",
        {.grid = dim3(static_cast<uint32_t>(p.rows),
                      static_cast<uint32_t>(ceil_div(packed ? count / 4 : count, kThreads))),
         .block = dim3(kThreads)},
        {{"rows", p.rows}, {"heads", p.heads}, {"n", p.n}},
        packed ? cast_kernel<Out, 4> : cast_kernel<Out, 1>, p);
  });
}

}  // namespace attune::ops::cuda
