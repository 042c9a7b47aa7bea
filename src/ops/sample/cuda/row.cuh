// A row of logits shared by the blocks of a cluster, each of which holds a slice of it, in shared
// memory where it fits. On GPUs without clusters the cluster is one block.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>
#include <cstring>

#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {

constexpr int32_t kRowThreads = 512, kRowWarps = kRowThreads / kWarp;
constexpr int32_t kMaxCluster = 8;
constexpr int32_t kStripe = 4 * kWarp;  // elements that a warp reads at once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ int32_t cluster_size() {
  return static_cast<int32_t>(cooperative_groups::this_cluster().num_blocks());
}
__device__ __forceinline__ int32_t cluster_rank() {
  return static_cast<int32_t>(cooperative_groups::this_cluster().block_rank());
}
__device__ __forceinline__ void cluster_sync() {
  cooperative_groups::this_cluster().sync();
}
// The same shared variable of another block.
template <typename T>
__device__ __forceinline__ T* of_block(T* shared, int32_t rank) {
  return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
}
#else
__device__ __forceinline__ int32_t cluster_size() {
  return 1;
}
__device__ __forceinline__ int32_t cluster_rank() {
  return 0;
}
__device__ __forceinline__ void cluster_sync() {
  __syncthreads();
}
template <typename T>
__device__ __forceinline__ T* of_block(T* shared, int32_t) {
  return shared;
}
#endif

// Elements of the slice of one block of `cluster`, a multiple of four.
__host__ __device__ constexpr int32_t slice_elems(int32_t vocab, int32_t cluster) {
  return static_cast<int32_t>(ceil_div(ceil_div(vocab, cluster), 4) * 4);
}

template <typename T>
__device__ __forceinline__ T shuffle_xor(T v, int offset) {
  static_assert(sizeof(T) % 4 == 0);
  uint32_t words[sizeof(T) / 4];
  memcpy(words, &v, sizeof(T));
#pragma unroll
  for (uint32_t& word : words) word = __shfl_xor_sync(~0u, word, offset);
  memcpy(&v, words, sizeof(T));
  return v;
}

// Of the lanes, in every lane.
__device__ __forceinline__ double warp_total(double v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += shuffle_xor(v, offset);
  return v;
}

// This thread's part of a row. A warp has a run of neighbours, which it reads in stripes, a lane
// four neighbours of each; so order by (block, warp, stripe, lane) is order by id.
class Row {
 public:
  // `memory`: of the slice. Elements behind the vocabulary are -inf.
  __device__ Row(float* memory, int32_t vocab)
      : x_(memory), rank_(cluster_rank()), blocks_(cluster_size()) {
    const int32_t elems = slice_elems(vocab, blocks_);
    first_id_ = rank_ * elems;
    count_ = max(0, min(elems, vocab - first_id_));
    const auto warp = static_cast<int32_t>(threadIdx.x / kWarp);
    const auto run = static_cast<int32_t>(ceil_div(ceil_div(elems, kRowWarps), kStripe)) * kStripe;
    begin_ = min(warp * run, count_);
    end_ = min(begin_ + run, count_);
  }

  __device__ int32_t rank() const { return rank_; }
  __device__ int32_t blocks() const { return blocks_; }
  __device__ int32_t first_id() const { return first_id_; }
  __device__ int32_t count() const { return count_; }

  // fn(value, element): element + first_id() is the id. Runs over the warp's own, in order.
  template <typename Fn>
  __device__ __forceinline__ void for_each(Fn&& fn) const {
    for (int32_t i = begin_ + lane() * 4; i < end_; i += kAtOnce * kStripe) {
      float4 v[kAtOnce];
      read(x_, i, v);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int32_t at = i + u * kStripe;
        if (at >= end_) break;
        fn(v[u].x, at);
        fn(v[u].y, at + 1);
        fn(v[u].z, at + 2);
        fn(v[u].w, at + 3);
      }
    }
  }
  // x = fn(x, element)
  template <typename Fn>
  __device__ __forceinline__ void transform(Fn&& fn) {
    for (int32_t i = begin_ + lane() * 4; i < end_; i += kAtOnce * kStripe) {
      float4 v[kAtOnce];
      read(x_, i, v);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int32_t at = i + u * kStripe;
        if (at >= end_) break;
        *reinterpret_cast<float4*>(x_ + at) = {fn(v[u].x, at), fn(v[u].y, at + 1),
                                               fn(v[u].z, at + 2), fn(v[u].w, at + 3)};
      }
    }
  }
  // fn(values, element of the first): by all lanes together, stripe after stripe, until it returns
  // true; behind the run's end the values are 0.
  template <typename Fn>
  __device__ __forceinline__ void for_stripes(Fn&& fn) const {
    for (int32_t base = begin_; base < end_; base += kStripe) {
      const int32_t i = base + lane() * 4;
      float4 v = {};
      if (i < end_) v = *reinterpret_cast<const float4*>(x_ + i);
      const float values[4] = {v.x, v.y, v.z, v.w};
      if (fn(values, i)) return;
    }
  }
  // From global memory, with fn(value, element) of each.
  template <typename Fn>
  __device__ __forceinline__ void load(const float* row, bool aligned, Fn&& fn) {
    const float* from = row + first_id_;
    if (aligned) {
      for (int32_t i = begin_ + lane() * 4; i < end_; i += kAtOnce * kStripe) {
        float4 v[kAtOnce];
        read(from, i, v);
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const int32_t at = i + u * kStripe;
          if (at >= end_) break;
          *reinterpret_cast<float4*>(x_ + at) = v[u];
          fn(v[u].x, at);
          fn(v[u].y, at + 1);
          fn(v[u].z, at + 2);
          fn(v[u].w, at + 3);
        }
      }
      return;
    }
    for (int32_t i = begin_ + lane() * 4; i < end_; i += kStripe) {
#pragma unroll
      for (int32_t k = 0; k < 4; ++k) {
        const float v = i + k < count_ ? from[i + k] : -INFINITY;
        x_[i + k] = v;
        if (i + k < count_) fn(v, i + k);
      }
    }
  }
  // Anybody's element of the slice.
  __device__ float& at(int32_t element) {
    return x_[element];
  }
  __device__ bool has(int32_t id) const {
    return id >= first_id_ && id - first_id_ < count_;
  }

  __device__ static int32_t lane() {
    return static_cast<int32_t>(threadIdx.x % kWarp);
  }
  __device__ static int32_t warp() {
    return static_cast<int32_t>(threadIdx.x / kWarp);
  }

 private:
  static constexpr int kAtOnce = 4;  // loads under way

  __device__ __forceinline__ void read(const float* from, int32_t i, float4 (&v)[kAtOnce]) const {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      if (i + u * kStripe < end_) v[u] = *reinterpret_cast<const float4*>(from + i + u * kStripe);
  }

  float* x_;
  int32_t rank_, blocks_, first_id_, count_, begin_, end_;
};

// Sums and the like over all threads of the cluster, kWarps of each block; every thread gets the
// result, combined in one order. Values have at most 16 bytes.
template <int32_t kWarps>
class Reducer {
 public:
  struct Memory {  // shared
    alignas(16) char partial[2][kWarps][16];
  };
  __device__ explicit Reducer(Memory* memory) : memory_(memory) {}

  template <typename T, typename Op>
  __device__ T reduce(T v, T none, Op op) {
    static_assert(sizeof(T) <= 16);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) v = op(v, shuffle_xor(v, offset));
    if (Row::lane() == 0) *reinterpret_cast<T*>(memory_->partial[turn_][Row::warp()]) = v;
    cluster_sync();
    // Every warp combines all warps'. The other buffer is free again after this sync: all blocks
    // have read it.
    v = none;
    for (int32_t i = Row::lane(); i < cluster_size() * kWarps; i += kWarp)
      v = op(v, *reinterpret_cast<const T*>(
                    of_block(memory_, i / kWarps)->partial[turn_][i % kWarps]));
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) v = op(v, shuffle_xor(v, offset));
    turn_ ^= 1;
    return v;
  }
  __device__ double sum(double v) {
    return reduce(v, 0.0, [](double a, double b) { return a + b; });
  }

 private:
  Memory* memory_;
  int32_t turn_ = 0;
};

}  // namespace attune::ops::cuda
