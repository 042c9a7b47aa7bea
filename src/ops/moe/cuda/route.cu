#include <cmath>

#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr int32_t kWarpsPerBlock = 2;
constexpr int32_t kMaxExperts = 1024;

// As the CPU's: correctly rounded but for rarest cases, so that the choice is the same.
__device__ __forceinline__ float exact_exp(float x) {
  return static_cast<float>(exp(static_cast<double>(x)));
}

// Floats as integers of the same order; 0 is less than any.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 is 0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The lowest index of those lanes whose key is the largest of all, in every lane.
__device__ __forceinline__ int32_t best_index(uint32_t key, int32_t index) {
  const uint32_t top = __reduce_max_sync(~0u, key);
  return __reduce_min_sync(~0u, key == top ? index : INT32_MAX);
}

// A lane's experts are lane + 32 v.
template <int V>
struct Experts {
  float score[V];
  uint32_t key[V];  // of the choice; 0: taken, or none

  // The best that is not taken, in every lane. REQUIRES: there is one.
  __device__ __forceinline__ int32_t best(int32_t lane) const {
    uint32_t mine = 0;
    int32_t index = INT32_MAX;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int32_t e = lane + v * kWarp;
      if (key[v] > mine) {
        mine = key[v];
        index = e;
      }
    }
    return best_index(mine, index);
  }
  __device__ __forceinline__ void take(int32_t lane, int32_t e) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (lane + v * kWarp == e) key[v] = 0;
  }
  __device__ __forceinline__ float score_of(int32_t e) const {
    float s = 0;
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v == e / kWarp) s = score[v];
    return __shfl_sync(~0u, s, e % kWarp);
  }
};

__device__ __forceinline__ float float_of(uint32_t key) {
  return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// Experts of all groups but the best get -inf. `shared`: [p.experts] keys, [p.groups] keys and
// [p.groups] marks. A lane scores a group: 32 at once.
template <int V>
__device__ __forceinline__ void keep_best_groups(const MoeRouteParams& p, int32_t lane,
                                                 Experts<V>& experts, uint32_t* keys) {
  const int32_t each = p.experts / p.groups;
  uint32_t *groups = keys + p.experts, *kept = groups + p.groups;
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (lane + v * kWarp < p.experts) keys[lane + v * kWarp] = experts.key[v];
  __syncwarp();
  for (int32_t g = lane; g < p.groups; g += kWarp) {
    uint32_t first = ordered(-INFINITY), second = first;
#pragma unroll 8
    for (int32_t i = 0; i < each; ++i) {
      const uint32_t key = keys[g * each + i];
      second = max(second, min(first, key));
      first = max(first, key);
    }
    groups[g] = p.group_top2 ? ordered(float_of(first) + float_of(second)) : first;
    kept[g] = 0;
  }
  __syncwarp();
  for (int32_t i = 0; i < p.top_groups; ++i) {
    uint32_t key = 0;
    int32_t index = INT32_MAX;
    for (int32_t g = lane; g < p.groups; g += kWarp) {
      if (groups[g] > key) {
        key = groups[g];
        index = g;
      }
    }
    const int32_t best = best_index(key, index);
    __syncwarp();
    if (lane == 0) {
      kept[best] = 1;
      groups[best] = ordered(-INFINITY);
    }
    __syncwarp();
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int32_t e = lane + v * kWarp;
    if (e < p.groups * each && kept[e / each] == 0) experts.key[v] = ordered(-INFINITY);
  }
}

template <int V>
__device__ __forceinline__ void score(const MoeRouteParams& p, const float* logits, int32_t lane,
                                      Experts<V>& experts) {
  float x[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int32_t e = lane + v * kWarp;
    x[v] = e < p.experts ? logits[e] : -INFINITY;
  }
  if (p.sigmoid) {
#pragma unroll
    for (int v = 0; v < V; ++v) experts.score[v] = 1.0f / (1.0f + exact_exp(-x[v]));
    return;
  }
  float top = -INFINITY;
#pragma unroll
  for (int v = 0; v < V; ++v) top = fmaxf(top, x[v]);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
  float sum = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    experts.score[v] = lane + v * kWarp < p.experts ? exact_exp(x[v] - top) : 0.0f;
    sum += experts.score[v];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int v = 0; v < V; ++v) experts.score[v] /= sum;
}

// A warp per token, its experts in registers.
template <int V>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp) route_kernel(MoeRouteParams p) {
  extern __shared__ uint32_t shared[];
  pdl_trigger();
  pdl_wait();
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarp);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const int64_t token = int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp;
  if (token >= p.tokens) return;
  Experts<V> experts;
  score(p, p.logits + token * p.experts, lane, experts);
  bool broken = false;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int32_t e = lane + v * kWarp;
    experts.key[v] = 0;
    if (e >= p.experts) continue;
    const float choice = experts.score[v] + (p.bias ? p.bias[e] : 0.0f);
    broken |= isnan(choice);
    experts.key[v] = ordered(choice);
  }
  int32_t* ids = p.ids + token * p.top_k;
  float* weights = p.weights + token * p.top_k;
  if (__any_sync(~0u, broken)) {  // no choice is right: the row becomes NaN
    for (int32_t j = lane; j < p.top_k; j += kWarp) {
      ids[j] = j;
      weights[j] = NAN;
    }
    return;
  }
  if (p.groups > 1) keep_best_groups(p, lane, experts, shared + warp * (p.experts + 2 * p.groups));
  float sum = 0;
  for (int32_t j = 0; j < p.top_k; ++j) {
    const int32_t best = experts.best(lane);
    experts.take(lane, best);
    const float weight = experts.score_of(best);
    sum += weight;
    if (lane == j % kWarp) {
      ids[j] = best;
      weights[j] = weight;
    }
  }
  const float factor = p.normalize ? p.scale / (sum + 1e-20f) : p.scale;
  for (int32_t j = lane; j < p.top_k; j += kWarp) weights[j] *= factor;
}

}  // namespace

void moe_route(const MoeRouteParams& p, Stream& stream) {
  if (p.tokens == 0) return;
  ATTUNE_CHECK(p.experts <= kMaxExperts && p.top_k <= p.experts && p.groups <= p.experts);
  auto* kernel = p.experts <= 64    ? route_kernel<2>
                 : p.experts <= 128 ? route_kernel<4>
                 : p.experts <= 256 ? route_kernel<8>
                 : p.experts <= 512 ? route_kernel<16>
                                    : route_kernel<kMaxExperts / kWarp>;
  launch_kernel(
      stream, "moe_route",
      {.grid = dim3(static_cast<uint32_t>(ceil_div(p.tokens, kWarpsPerBlock))),
       .block = dim3(kWarpsPerBlock * kWarp),
       .shared_bytes = static_cast<uint32_t>(kWarpsPerBlock * (p.experts + 2 * p.groups) * 4)},
      {{"tokens", p.tokens}, {"experts", p.experts}, {"top_k", p.top_k}}, kernel, p);
}

}  // namespace attune::ops::cuda
