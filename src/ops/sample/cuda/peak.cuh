// What the sampler's kernels share: a row's peak, how a row's token is found, and where it goes.
#pragma once

#include "ops/sample/cuda/row.cuh"
#include "ops/sample/cuda/sample_kernels.h"

namespace attune::ops::cuda {

constexpr float kGreedyBelow = 1e-6f;  // as the CPU's (ops/sample/cpu/sample.cc)

struct Peak {
  float value;
  int32_t id;
  int32_t bad;  // a NaN or +inf somewhere
};
__device__ __forceinline__ Peak no_peak() {
  return {-INFINITY, INT32_MAX, 0};
}

__device__ __forceinline__ bool finite(const Peak& p) {
  return p.bad == 0 && p.value > -INFINITY;
}
// Larger; of equals the smaller id.
__device__ __forceinline__ bool before(float a, int32_t a_id, float b, int32_t b_id) {
  return a > b || (a == b && a_id < b_id);
}
__device__ __forceinline__ Peak merge(const Peak& a, const Peak& b) {
  Peak p = before(b.value, b.id, a.value, a.id) ? b : a;
  p.bad = a.bad | b.bad;
  return p;
}
template <int32_t kWarps>
__device__ __forceinline__ Peak merged(const Peak& own, Reducer<kWarps>& reducer) {
  return reducer.reduce(own, no_peak(), [](const Peak& a, const Peak& b) { return merge(a, b); });
}
// In rising order of ids.
__device__ __forceinline__ void add(Peak& p, float v, int32_t id) {
  p.bad |= !(v < INFINITY);
  if (v > p.value) {
    p.value = v;
    p.id = id;
  }
}

// Without branches, so that what they read is under way at once.
__device__ __forceinline__ bool takes_peak(const Place& p) {
  return bool(p.temperature < kGreedyBelow) | bool(p.top_k == 1);
}
__device__ __forceinline__ bool cuts_top_k(int32_t top_k, int32_t vocab) {
  return bool(top_k > 0) & bool(top_k < vocab);
}

enum class Way : uint8_t {
  kPeak,   // it is the peak of the logits as they came
  kDraw,   // drawn from the logits as they came; from few of them, most likely
  kOther,  // anything else
};

// Of Way::kDraw. Top-p alone may leave thousands of elements, which one block sorts more slowly
// than sample_kernel's descent finds the drawn one.
constexpr int32_t kMostTopK = 512;
constexpr float kLeastMinP = 0.01f;

// The same before and after the row's token is stored.
__device__ __forceinline__ Way way_of(const Place& p, int32_t vocab) {
  const bool changed = bool(p.top_logprobs >= 0) | bool(p.num_bias != 0) | bool(p.penalised != 0) |
                       (bool(p.num_forbidden != 0) & bool(p.output_tokens < p.min_new_tokens));
  const bool top_k = cuts_top_k(p.top_k, vocab);
  const bool wide = (top_k & bool(p.top_k > kMostTopK)) |
                    (!top_k & bool(p.top_p < 1.0f) & bool(p.min_p < kLeastMinP));
  return changed ? Way::kOther : takes_peak(p) ? Way::kPeak : wide ? Way::kOther : Way::kDraw;
}

// Of one thread.
__device__ __forceinline__ void store_token(const SampleArgs& a, int64_t i, int32_t place_id,
                                            int32_t token) {
  a.results[i].token = token;
  a.last_tokens[place_id] = max(token, 0);
  if (token < 0) return;
  Place& place = a.states[place_id];
  ++place.output_tokens;
  if (place.penalised) ++a.counts[int64_t{place_id} * a.vocab + token];
}

}  // namespace attune::ops::cuda
