#include <cmath>

#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr int32_t kWarpsPerBlock = 4;
constexpr int32_t kMaxExperts = 2048;  // 16 bytes each of a warp are 32 of 48 KiB

// As the CPU's: correctly rounded but for rarest cases, so that the choice is the same.
__device__ __forceinline__ float exact_exp(float x) {
  return static_cast<float>(exp(static_cast<double>(x)));
}

struct Best {
  float value;
  int32_t index;
};

// Larger; of equals the lower index. NaN loses against all.
__device__ __forceinline__ bool better(const Best& a, const Best& b) {
  if (isnan(b.value)) return !isnan(a.value) || a.index < b.index;
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// The index of the largest of x[0, n) in shared memory, the lowest of equals, in all lanes; NaN is
// never it unless all are.
__device__ int32_t argmax(const float* x, int32_t n) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  Best best = {NAN, n};
  for (int32_t i = lane; i < n; i += kWarp)
    if (better({x[i], i}, best)) best = {x[i], i};
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Best other = {__shfl_xor_sync(~0u, best.value, offset),
                        __shfl_xor_sync(~0u, best.index, offset)};
    if (better(other, best)) best = other;
  }
  return best.index;
}

__device__ float group_score(const float* x, int32_t n, bool top2) {
  float first = -INFINITY, second = -INFINITY;
  for (int32_t i = 0; i < n; ++i) {
    if (x[i] > first) {
      second = first;
      first = x[i];
    } else if (x[i] > second) {
      second = x[i];
    }
  }
  return top2 ? first + second : first;
}

// Experts of all groups but the best get -inf. `groups`: shared, [2 * p.groups].
__device__ void keep_best_groups(const MoeRouteParams& p, float* choice, float* groups) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const int32_t each = p.experts / p.groups;
  float* kept = groups + p.groups;
  for (int32_t g = lane; g < p.groups; g += kWarp) {
    groups[g] = group_score(choice + g * each, each, p.group_top2);
    kept[g] = 0;
  }
  __syncwarp();
  for (int32_t i = 0; i < p.top_groups; ++i) {
    const int32_t best = argmax(groups, p.groups);
    __syncwarp();
    if (lane == 0) {
      kept[best] = 1;
      groups[best] = -INFINITY;
    }
    __syncwarp();
  }
  for (int32_t e = lane; e < p.groups * each; e += kWarp)
    if (kept[e / each] == 0) choice[e] = -INFINITY;
  __syncwarp();
}

// Scores into shared memory.
__device__ void score(const MoeRouteParams& p, const float* logits, float* scores) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  if (p.sigmoid) {
    for (int32_t e = lane; e < p.experts; e += kWarp)
      scores[e] = 1.0f / (1.0f + exact_exp(-logits[e]));
    return;
  }
  float top = -INFINITY;
  for (int32_t e = lane; e < p.experts; e += kWarp) top = fmaxf(top, logits[e]);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
  float sum = 0;
  for (int32_t e = lane; e < p.experts; e += kWarp) sum += scores[e] = exact_exp(logits[e] - top);
  sum = warp_sum(sum);
  for (int32_t e = lane; e < p.experts; e += kWarp) scores[e] /= sum;
}

// A warp per token, its scores in shared memory.
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp) route_kernel(MoeRouteParams p) {
  extern __shared__ float shared[];
  pdl_wait();
  pdl_trigger();
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarp);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const int64_t token = int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp;
  if (token >= p.tokens) return;
  float* scores = shared + warp * 4 * p.experts;
  float* choice = scores + p.experts;
  score(p, p.logits + token * p.experts, scores);
  bool broken = false;
  for (int32_t e = lane; e < p.experts; e += kWarp) {
    choice[e] = scores[e] + (p.bias ? p.bias[e] : 0.0f);
    broken |= isnan(choice[e]);
  }
  __syncwarp();
  int32_t* ids = p.ids + token * p.top_k;
  float* weights = p.weights + token * p.top_k;
  if (__any_sync(~0u, broken)) {  // no choice is right: the row becomes NaN
    for (int32_t j = lane; j < p.top_k; j += kWarp) {
      ids[j] = j;
      weights[j] = NAN;
    }
    return;
  }
  if (p.groups > 1) keep_best_groups(p, choice, choice + p.experts);
  float sum = 0;
  for (int32_t j = 0; j < p.top_k; ++j) {
    const int32_t best = argmax(choice, p.experts);
    sum += scores[best];
    if (lane == j % kWarp) {
      ids[j] = best;
      weights[j] = scores[best];
    }
    __syncwarp();
    if (lane == 0) choice[best] = NAN;  // taken
    __syncwarp();
  }
  const float factor = p.normalize ? p.scale / (sum + 1e-20f) : p.scale;
  for (int32_t j = lane; j < p.top_k; j += kWarp) weights[j] *= factor;
}

}  // namespace

void moe_route(const MoeRouteParams& p, Stream& stream) {
  if (p.tokens == 0) return;
  ATTUNE_CHECK(p.experts <= kMaxExperts && p.top_k <= p.experts && p.groups <= p.experts);
  const int32_t warp_bytes = 4 * p.experts * int32_t{sizeof(float)};
  int32_t warps = kWarpsPerBlock;
  while (warps > 1 && warps * warp_bytes > (48 << 10)) warps /= 2;
  launch_kernel(stream, "moe_route",
                {.grid = dim3(static_cast<uint32_t>(ceil_div(p.tokens, warps))),
                 .block = dim3(static_cast<uint32_t>(warps * kWarp)),
                 .shared_bytes = static_cast<uint32_t>(warps * warp_bytes)},
                {{"tokens", p.tokens}, {"experts", p.experts}, {"top_k", p.top_k}}, route_kernel,
                p);
}

}  // namespace attune::ops::cuda
