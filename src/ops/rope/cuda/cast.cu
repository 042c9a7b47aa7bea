#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// A thread makes N neighbours of one head.
template <typename Out, int N>
__global__ void __launch_bounds__(kThreads) cast_kernel(CastParams p) {
  pdl_wait();
  pdl_trigger();
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  const auto i = static_cast<int32_t>(at % p.n);
  const int64_t head = at / p.n;  // of all rows
  if (head >= int64_t{p.rows} * p.heads) return;
  float x[N];
  load(p.x + head / p.heads * p.ldx + head % p.heads * p.head_stride + i, x);
  store(x, static_cast<Out*>(p.out) + at);
}

}  // namespace

void cast(const CastParams& p, Stream& stream) {
  const int64_t count = int64_t{p.rows} * p.heads * p.n;
  if (count == 0) return;
  const bool packed = all_multiples(16, {address(p.x), address(p.out)}) &&
                      all_multiples(4, {p.ldx, p.head_stride, p.n});
  with_element(p.out_dtype, [&](auto out) {
    using Out = decltype(out);
    launch_kernel(stream, "cast", blocks_for(packed ? count / 4 : count, kThreads),
                  {{"rows", p.rows}, {"heads", p.heads}, {"n", p.n}},
                  packed ? cast_kernel<Out, 4> : cast_kernel<Out, 1>, p);
  });
}

}  // namespace attune::ops::cuda
