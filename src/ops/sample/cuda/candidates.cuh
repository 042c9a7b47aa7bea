// The usual case of top-k and top-p: what can be drawn are few elements, which one block sorts.
#pragma once

#include "ops/sample/cuda/place.h"
#include "ops/sample/cuda/select.cuh"

namespace attune::ops::cuda {

constexpr int32_t kUndecided = -2;  // no token: it takes more than the candidates to know

// What a place asks for, in registers: a cluster that meets forgets what it read.
struct Choice {
  int32_t top_k;
  float top_p, min_p;
};

struct CandidateMemory {  // shared
  double warp_mass[kRowWarps];
  double mass;
  int32_t first;  // index that a condition holds from
};

// Larger for the likelier, and for the smaller id of equals.
__device__ __forceinline__ uint64_t candidate_key(float probability, int32_t id) {
  return uint64_t{__float_as_uint(probability)} << 32 | static_cast<uint32_t>(~id);
}

// Where the i-th key lies: neighbours of a thread, in runs of up to 16, in other banks than those
// of the next threads.
__host__ __device__ constexpr int32_t key_slot(int32_t i) {
  return i + i / 16;
}

// The elements with at least `bits`, of which there are few enough for `keys`, in order of ids in
// block 0's `keys`. By all threads of the cluster, which has met since `keys` was used otherwise.
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
          to[key_slot(at++)] = candidate_key(v[k], row.first_id() + i + k);
      before += __shfl_sync(~0u, upto, kWarp - 1);
      return false;
    });
  }
  cluster_sync();
}

// Larger first. `size`: a power of two, at least 2. By the kThreads of a block.
template <int32_t kThreads>
__device__ __forceinline__ void sort_descending(uint64_t* keys, int32_t size) {
  for (int32_t span = 2; span <= size; span *= 2) {
    for (int32_t step = span / 2; step > 0; step /= 2) {
      for (auto p = static_cast<int32_t>(threadIdx.x); p < size / 2; p += kThreads) {
        const int32_t i = 2 * p - (p & (step - 1)), low = key_slot(i), high = key_slot(i + step);
        const bool descending = (i & span) == 0;
        const uint64_t a = keys[low], b = keys[high];
        if ((a < b) == descending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

// Of one block of kThreads: the token to draw of `count` keys, the likeliest of a row, by the CPU's
// rules. The keys lie in their key_slot(), in any order.
template <int32_t kThreads>
class Candidates {
 public:
  static constexpr int32_t kMax = 4096, kSlots = key_slot(kMax);

  __device__ Candidates(uint64_t* keys, int32_t count, CandidateMemory* c)
      : keys_(keys), count_(count), c_(c) {
    int32_t size = 2;
    while (size < count) size *= 2;
    for (auto i = count + static_cast<int32_t>(threadIdx.x); i < size; i += kThreads)
      keys_[key_slot(i)] = 0;
    __syncthreads();
    sort_descending<kThreads>(keys_, size);
    const auto each = static_cast<int32_t>(ceil_div(count, kThreads));
    begin_ = min(static_cast<int32_t>(threadIdx.x) * each, count);
    end_ = min(begin_ + each, count);
    add_up();
  }

  // `total`: mass of the whole row. `all`: nothing but the candidates can be drawn; else
  // kUndecided is possible.
  __device__ int32_t draw(const Choice& choice, double u, bool top_k, double total, bool all) {
    if (top_k && !all && count_ < choice.top_k) return kUndecided;
    int32_t kept = top_k ? min(choice.top_k, count_) : count_;
    bool decided = top_k || all;
    const double base = top_k ? mass_to(kept) : total;
    if (choice.top_p < 1.0f) {
      const double target = static_cast<double>(choice.top_p) * base;
      const int32_t reached = first_with([&](float, double upto) { return upto >= target; });
      decided |= reached < count_;
      kept = min(kept, reached + 1);
    }
    if (choice.min_p > 0) {
      const int32_t below = first_with([&](float p, double) { return p < choice.min_p; });
      decided |= below < count_;
      kept = min(kept, max(1, below));
    }
    if (!decided) return kUndecided;
    const double target = u * mass_to(kept);
    const int32_t at = min(first_with([&](float, double upto) { return upto > target; }), kept - 1);
    return static_cast<int32_t>(~static_cast<uint32_t>(keys_[key_slot(at)]));
  }

 private:
  __device__ float probability(int32_t i) const {
    return __uint_as_float(static_cast<uint32_t>(keys_[key_slot(i)] >> 32));
  }
  // before_: of all keys before this thread's.
  __device__ void add_up() {
    double own = 0;
    for (int32_t i = begin_; i < end_; ++i) own += probability(i);
    const double upto = warp_scan(own);
    before_ = __shfl_up_sync(~0u, upto, 1);
    if (Row::lane() == 0) before_ = 0;
    if (Row::lane() == kWarp - 1) c_->warp_mass[Row::warp()] = upto;
    __syncthreads();
    double warps = 0;
    for (int32_t w = 0; w < Row::warp(); ++w) warps += c_->warp_mass[w];
    before_ += warps;
  }
  // The lowest index of a key with condition(its probability, the sum of all to it); count if there
  // is none. What holds of a key holds of those behind it.
  template <typename Condition>
  __device__ int32_t first_with(Condition condition) {
    __syncthreads();
    if (threadIdx.x == 0) c_->first = count_;
    __syncthreads();
    int32_t mine = INT32_MAX;
    double own = 0;
    for (int32_t i = begin_; i < end_; ++i) {
      const float p = probability(i);
      own += p;
      if (condition(p, own + before_)) {
        mine = i;
        break;
      }
    }
    mine = __reduce_min_sync(~0u, mine);
    if (Row::lane() == 0 && mine < count_) atomicMin(&c_->first, mine);
    __syncthreads();
    return c_->first;
  }
  // Of the first n >= 1.
  __device__ double mass_to(int32_t n) {
    __syncthreads();
    if (begin_ < n && n <= end_) {
      double own = 0;
      for (int32_t i = begin_; i < n; ++i) own += probability(i);
      c_->mass = own + before_;
    }
    __syncthreads();
    return c_->mass;
  }

  uint64_t* keys_;
  int32_t count_;
  CandidateMemory* c_;
  int32_t begin_, end_;  // of this thread's
  double before_ = 0;
};

}  // namespace attune::ops::cuda
