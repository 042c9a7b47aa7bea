#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kWarps = 4;

// A warp per row; the same arithmetic as the CPU's merge_row.
template <typename T>
__global__ void __launch_bounds__(kWarps * 32) merge_rows(MergeStateParams p, int64_t rows) {
  pdl_trigger();
  pdl_wait();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  T* a = static_cast<T*>(p.out) + row * p.v_dim;
  const T* b = static_cast<const T*>(p.part) + row * p.v_dim;
  const float a_lse = p.lse[row], b_lse = p.part_lse[row];
  if (b_lse == -INFINITY) return;
  const bool none = a_lse == -INFINITY;
  const float top = fmaxf(a_lse, b_lse);
  const float wa = none ? 0.0f : expf(a_lse - top), wb = expf(b_lse - top), sum = wa + wb;
  for (int32_t i = lane; i < p.v_dim; i += 32)
    a[i] = none ? b[i] : from_float<T>((to_float(a[i]) * wa + to_float(b[i]) * wb) * (1.0f / sum));
  __syncwarp();  // every lane has read the LSE
  if (lane == 0) p.lse[row] = none ? b_lse : top + logf(sum);
}

}  // namespace

void merge_state(const MergeStateParams& p, Stream& stream) {
  const int64_t rows = int64_t{p.tokens} * p.heads;
  if (rows == 0) return;
  with_activation(p.dtype, [&](auto element) {
    launch_kernel(
        stream, "merge_state",
        {.grid = static_cast<uint32_t>((rows + kWarps - 1) / kWarps), .block = kWarps * 32},
        {{"tokens", p.tokens}, {"heads", p.heads}, {"v_dim", p.v_dim}},
        merge_rows<decltype(element)>, p, rows);
  });
}

}  // namespace attune::ops::cuda
