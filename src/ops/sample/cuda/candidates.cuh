// The usual case of top-k and top-p: what can be drawn are few elements, which one block sorts.
#pragma once

#include "ops/sample/cuda/place.h"
#include "ops/sample/cuda/select.cuh"

namespace attune::ops::cuda {

constexpr int32_t kMaxCandidates = 4 * kRowThreads;

struct CandidateMemory {  // shared
  int32_t first;          // index that a condition holds from
  double mass;
};

// The elements with at least `bits`, of which there are `count` <= kMaxCandidates, as keys in
// order of ids in block 0's `keys`. A key is larger for the likelier, and for the smaller id of
// equals. By all threads of the cluster, which has met since `keys` was used otherwise.
__device__ __forceinline__ void gather(const Row& row, uint32_t bits, SelectMemory* m,
                                       uint64_t* keys) {
  uint32_t mine = 0;
  row.for_each([&](float v, int32_t) { mine += __float_as_uint(v) >= bits; });
  mine = __reduce_add_sync(~0u, mine);
  if (Row::lane() == 0) m->warp_count[Row::warp()] = mine;
  cluster_sync();
  const int32_t self = row.rank() * kRowWarps + Row::warp();
  uint32_t before = 0;
  for (int32_t w = Row::lane(); w < self; w += kWarp)
    before += of_block(m, w / kRowWarps)->warp_count[w % kRowWarps];
  before = __reduce_add_sync(~0u, before);
  if (mine > 0) {
    uint64_t* to = of_block(keys, 0);
    row.for_stripes([&](const float(&v)[4], int32_t i) {
      uint32_t hits = 0;
#pragma unroll
      for (float x : v) hits += __float_as_uint(x) >= bits;
      if (!__any_sync(~0u, hits > 0)) return false;
      const uint32_t upto = warp_scan(hits);
      uint32_t at = before + upto - hits;
#pragma unroll
      for (int32_t k = 0; k < 4; ++k)
        if (__float_as_uint(v[k]) >= bits)
          to[at++] = uint64_t{__float_as_uint(v[k])} << 32 |
                     static_cast<uint32_t>(~(row.first_id() + i + k));
      before += __shfl_sync(~0u, upto, kWarp - 1);
      return false;
    });
  }
  cluster_sync();
}

// Larger first. `size`: a power of two, at least 2.
__device__ __forceinline__ void sort_descending(uint64_t* keys, int32_t size) {
  for (int32_t span = 2; span <= size; span *= 2) {
    for (int32_t step = span / 2; step > 0; step /= 2) {
      for (auto p = static_cast<int32_t>(threadIdx.x); p < size / 2; p += kRowThreads) {
        const int32_t i = 2 * p - (p & (step - 1)), j = i + step;
        const bool descending = (i & span) == 0;
        const uint64_t a = keys[i], b = keys[j];
        if ((a < b) == descending) {
          keys[i] = b;
          keys[j] = a;
        }
      }
      __syncthreads();
    }
  }
}

// Of one block: the token to draw of `count` sorted-to-be keys, by the CPU's rules. `total`: mass
// of the whole row.
class Candidates {
 public:
  __device__ Candidates(uint64_t* keys, int32_t count, SelectMemory* m, CandidateMemory* c)
      : keys_(keys), count_(count), m_(m), c_(c) {
    int32_t size = 2;
    while (size < count) size *= 2;
    for (auto i = count + static_cast<int32_t>(threadIdx.x); i < size; i += kRowThreads)
      keys_[i] = 0;
    __syncthreads();
    sort_descending(keys_, size);
    add_up();
  }

  __device__ int32_t draw(const Place& place, double u, bool top_k, double total) {
    int32_t kept = top_k ? min(place.top_k, count_) : count_;
    const double base = top_k ? mass_to(kept) : total;
    if (place.top_p < 1.0f) {
      const double target = static_cast<double>(place.top_p) * base;
      kept = min(kept, first_with([&](int32_t k) { return upto_[k] >= target; }) + 1);
    }
    if (place.min_p > 0)
      kept = min(kept, max(1, first_with([&](int32_t k) { return p_[k] < place.min_p; })));
    const double target = u * mass_to(kept);
    const int32_t at = min(first_with([&](int32_t k) { return upto_[k] > target; }), kept - 1);
    return static_cast<int32_t>(~static_cast<uint32_t>(keys_[at]));
  }

 private:
  static constexpr int32_t kEach = kMaxCandidates / kRowThreads;

  // p_, and upto_ of all to it, of this thread's.
  __device__ void add_up() {
    double own = 0;
#pragma unroll
    for (int32_t k = 0; k < kEach; ++k) {
      p_[k] = index(k) < count_ ? __uint_as_float(static_cast<uint32_t>(keys_[index(k)] >> 32)) : 0;
      own += p_[k];
      upto_[k] = own;
    }
    const double upto = warp_scan(own);
    double before = __shfl_up_sync(~0u, upto, 1);
    if (Row::lane() == 0) before = 0;
    if (Row::lane() == kWarp - 1) m_->warp_mass[Row::warp()] = upto;
    __syncthreads();
    double warps = 0;
    for (int32_t w = 0; w < Row::warp(); ++w) warps += m_->warp_mass[w];
#pragma unroll
    for (int32_t k = 0; k < kEach; ++k) upto_[k] += warps + before;
  }
  __device__ static int32_t index(int32_t k) {
    return static_cast<int32_t>(threadIdx.x) * kEach + k;
  }
  // The lowest index of an element with condition(k); count if there is none.
  template <typename Condition>
  __device__ int32_t first_with(Condition condition) {
    __syncthreads();
    if (threadIdx.x == 0) c_->first = count_;
    __syncthreads();
    int32_t mine = INT32_MAX;
#pragma unroll
    for (int32_t k = kEach - 1; k >= 0; --k)
      if (index(k) < count_ && condition(k)) mine = index(k);
    mine = __reduce_min_sync(~0u, mine);
    if (Row::lane() == 0 && mine < count_) atomicMin(&c_->first, mine);
    __syncthreads();
    return c_->first;
  }
  // Of the first n >= 1.
  __device__ double mass_to(int32_t n) {
    __syncthreads();
#pragma unroll
    for (int32_t k = 0; k < kEach; ++k)
      if (index(k) == n - 1) c_->mass = upto_[k];
    __syncthreads();
    return c_->mass;
  }

  uint64_t* keys_;
  int32_t count_;
  SelectMemory* m_;
  CandidateMemory* c_;
  float p_[kEach];
  double upto_[kEach];
};

}  // namespace attune::ops::cuda
