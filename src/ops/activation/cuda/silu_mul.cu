#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// Into bfloat16 the hardware's exponential and quotient are exact enough (2^-20), and three times
// as fast; they would bound long prompts.
template <typename Out>
__device__ __forceinline__ float silu_times(float gate, float up) {
  if constexpr (sizeof(Out) == 4) return gate / (1.0f + expf(-gate)) * up;
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// A thread makes N neighbours. Grid: rows, pieces of a row.
template <typename In, typename Out, int N>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(SiluMulParams p) {
  pdl_trigger();
  pdl_wait();
  const int64_t row = blockIdx.x;
  const int64_t i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  if (i >= p.n) return;
  const In* gate = static_cast<const In*>(p.gate_up) + row * p.ldx + i;
  float g[N], u[N];
  load(gate, g);
  load(gate + p.n, u);
#pragma unroll
  for (int k = 0; k < N; ++k) g[k] = silu_times<Out>(g[k], u[k]);
  store(g, static_cast<Out*>(p.out) + row * p.ldo + i);
}

template <typename In, typename Out>
void launch(const SiluMulParams& p, Stream& stream) {
  constexpr int kPack = 8;
  const bool packed = all_multiples(16, {address(p.gate_up), address(p.out)}) &&
                      all_multiples(kPack, {p.n, p.ldx, p.ldo});
  const int64_t pieces = ceil_div(p.n, kThreads * (packed ? kPack : 1));
  launch_kernel(stream, "silu_mul",
                {.grid = dim3(static_cast<uint32_t>(p.rows), static_cast<uint32_t>(pieces)),
                 .block = dim3(kThreads)},
                {{"rows", p.rows}, {"n", p.n}},
                packed ? silu_mul_kernel<In, Out, kPack> : silu_mul_kernel<In, Out, 1>, p);
}

}  // namespace

void silu_mul(const SiluMulParams& p, Stream& stream) {
  if (p.rows == 0 || p.n == 0) return;
  with_activation(p.x_dtype, [&](auto in) {
    with_activation(p.out_dtype, [&](auto out) { launch<decltype(in), decltype(out)>(p, stream); });
  });
}

}  // namespace attune::ops::cuda
