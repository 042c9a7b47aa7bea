// The device plan of a step: which chunks of keys there are for which query rows. Every CTA plans
// all of it, in its own scratch, and writes its share of the list.
#pragma once

#include "attention/backends/fa3/cuda/range.cuh"
#include "attention/backends/fa3/work.h"
#include "device/cuda/launch.cuh"

namespace attune::attention::fa3 {

inline constexpr int kPlanThreads = 1024, kPlanWarps = kPlanThreads / 32;

// Chunk lengths that are weighed against each other, in tiles: 1 to 8, then four for each doubling,
// and last what cuts nothing.
inline constexpr int kPlanLengths = kPlanWarps - 2;
// How much faster than its even share of the memory's rate a multiprocessor can read.
inline constexpr float kMostRate = 1.5f;
__device__ __forceinline__ int32_t planned_length(int which) {
  if (which == kPlanLengths - 1) return 1 << 28;
  return which < 8 ? which + 1 : (5 + which % 4) << (which / 4 - 1);
}

struct PlanShared {
  int32_t sums[2][kPlanWarps + 1];
  float costs[kPlanWarps];
  int32_t lengths[kPlanWarps], longest[kPlanWarps];
};

class Planner {
 public:
  __device__ Planner(const PlanArgs& a, PlanShared& sm)
      : a_(a), sm_(sm), window_(a.windows[blockIdx.y]) {
    const int64_t cta = blockIdx.y * gridDim.x + blockIdx.x;
    block_starts_ = a.scratch + cta * a.scratch_stride;
    tiles_ = block_starts_ + a.num_seqs + 1;
    chunk_starts_ = tiles_ + a.max_blocks + 1;
    partial_starts_ = chunk_starts_ + a.max_blocks + 1;
    orders_ = partial_starts_ + a.max_blocks + 1;
  }

  __device__ void run() {
    find_blocks();
    count_tiles();
    choose_length();
    count_chunks();
    order_chunks();
    for (int32_t c = blockIdx.x * kPlanWarps + warp(); c < chunk_starts_[blocks_];
         c += gridDim.x * kPlanWarps)
      write(c);
    if (blockIdx.x == 0 && threadIdx.x == 0)
      *a_.lists[blockIdx.y].num_chunks = chunk_starts_[blocks_];
  }

 private:
  static __device__ int warp() { return threadIdx.x / 32; }
  static __device__ int lane() { return threadIdx.x % 32; }

  // Sums of what the threads before this one have, and of all.
  __device__ void scan(int32_t (&value)[2], int32_t (&total)[2]) {
    int32_t mine[2] = {value[0], value[1]};
    for (int which = 0; which < 2; ++which) {
      for (int step = 1; step < 32; step *= 2) {
        const int32_t other = __shfl_up_sync(0xffffffff, value[which], step);
        if (lane() >= step) value[which] += other;
      }
      if (lane() == 31) sm_.sums[which][warp()] = value[which];
    }
    __syncthreads();
    for (int which = 0; which < 2; ++which) {
      int32_t sum = 0;
      for (int w = 0; w < kPlanWarps; ++w) {
        if (w == warp()) value[which] += sum;
        sum += sm_.sums[which][w];
      }
      total[which] = sum;
      value[which] -= mine[which];
    }
    __syncthreads();
  }

  // Rows of a sequence, in blocks.
  __device__ void find_blocks() {
    int32_t before = 0;
    for (int32_t first = 0; first < a_.num_seqs; first += kPlanThreads) {
      const int32_t s = first + threadIdx.x;
      int32_t count[2] = {0, 0}, total[2];
      if (s < a_.num_seqs) {
        const int32_t rows = (a_.at.q_indptr[s + 1] - a_.at.q_indptr[s]) * a_.group.size;
        count[0] = (rows + a_.block_rows - 1) / a_.block_rows;
      }
      scan(count, total);
      if (s < a_.num_seqs) block_starts_[s] = before + count[0];
      before += total[0];
    }
    blocks_ = min(before, a_.max_blocks);
    if (threadIdx.x == 0) block_starts_[a_.num_seqs] = before;
    __syncthreads();
  }

  // The last i in [0, count) with starts[i] <= at, where starts rise.
  static __device__ int32_t find(const int32_t* starts, int32_t count, int32_t at) {
    int32_t low = 0, high = count;
    while (high - low > 1) {
      const int32_t mid = (low + high) / 2;
      (starts[mid] <= at ? low : high) = mid;
    }
    return low;
  }

  struct Block {
    BlockRows rows;
    int32_t seq, tile;
    KeyRange keys;
    __device__ int32_t first_tile() const { return keys.begin / tile; }
    __device__ int32_t tiles() const { return (keys.end + tile - 1) / tile - first_tile(); }
  };
  __device__ Block block(int32_t b) const {
    const int32_t s = find(block_starts_, a_.num_seqs, b);
    const int32_t q_len = a_.at.q_indptr[s + 1] - a_.at.q_indptr[s];
    const int32_t first = (b - block_starts_[s]) * a_.block_rows;
    Block out{{q_len, a_.at.kv_len[s], first, min(a_.block_rows, q_len * a_.group.size - first),
               a_.group, a_.causal, a_.at.tree_mask != nullptr},
              s,
              a_.tile,
              {}};
    out.keys = out.rows.seen(window_);
    return out;
  }

  __device__ void count_tiles() {
    int32_t mine[2] = {0, 0}, total[2];
    for (int32_t b = threadIdx.x; b < blocks_; b += kPlanThreads) {
      tiles_[b] = block(b).tiles();
      mine[0] += tiles_[b];
    }
    scan(mine, total);
    total_ = total[0];
  }

  __device__ int32_t chunks_of(int32_t tiles, int32_t length) const {
    if (a_.cut.num_splits > 0) return max(1, min(a_.cut.num_splits, tiles));
    return max(1, (tiles + length - 1) / length);
  }

  // The estimated end of the last CTA, in tiles, if the longest items come first; each warp takes
  // one length. While all CTAs read, memory is the limit, and so it stays while some idle; when so
  // few are left in the last round that each reads at its most, the rest of the memory's rate is
  // lost: `wasted`.
  __device__ void choose_length() {
    if (a_.cut.fixed > 0) return;
    const int64_t work = int64_t{total_} * a_.heads;
    const auto share = static_cast<int32_t>((work + a_.cut.ctas - 1) / a_.cut.ctas);
    // The even share and the one after are weighed too.
    const int32_t length =
        max(1, warp() < kPlanLengths ? planned_length(warp()) : share + warp() - kPlanLengths);
    int32_t chunks = 0, partials = 0, longest = 0;
    for (int32_t b = lane(); b < blocks_; b += 32) {
      const int32_t n = chunks_of(tiles_[b], length);
      chunks += n;
      if (n > 1) partials += n;
      longest = max(longest, (tiles_[b] + n - 1) / n);
    }
    for (int step = 16; step > 0; step /= 2) {
      chunks += __shfl_xor_sync(0xffffffff, chunks, step);
      partials += __shfl_xor_sync(0xffffffff, partials, step);
      longest = max(longest, __shfl_xor_sync(0xffffffff, longest, step));
    }
    const float rounds = static_cast<float>(chunks) * a_.heads / a_.cut.ctas;
    const float even = static_cast<float>(work) / a_.cut.ctas;
    const float mean = static_cast<float>(total_) / max(chunks, 1);
    // The part of CTAs that work in the last round, if all chunks are of about a length; else on
    // average.
    const float at_work = rounds - (ceilf(rounds) - 1);
    const float wasted = rounds <= 1             ? 0
                         : longest < 1.1f * mean ? max(at_work, 1 / kMostRate) - at_work
                                                 : 0.5f / (kMostRate * kMostRate);
    // As many multiprocessors as add up are still the last launch's when this one begins.
    const bool late = rounds > 1 || (chunks + 1) * a_.heads > a_.cut.ctas;
    float cost = max(even + wasted * mean, longest / kMostRate + (late ? a_.cut.late_cost : 0)) +
                 ceilf(rounds) * a_.cut.item_cost;
    if (partials > 0) cost += a_.cut.split_cost;
    if (partials > a_.cut.max_partials) cost = INFINITY;
    if (lane() == 0)
      sm_.costs[warp()] = cost, sm_.lengths[warp()] = length, sm_.longest[warp()] = longest;
    __syncthreads();
    int best = kPlanLengths - 1;  // no cuts: always possible
    for (int w = 0; w < kPlanWarps; ++w)
      if (sm_.costs[w] < sm_.costs[best]) best = w;
    length_ = sm_.lengths[best];
    longest_ = sm_.longest[best];
  }

  // Chunks of a block, if there is room for them; one, if there is not even without the others.
  __device__ int32_t wished(int32_t b) const {
    int32_t n = 0;
    if (a_.cut.fixed > 0) {
      const Block at = block(b);
      n = (at.keys.end + a_.cut.fixed - 1) / a_.cut.fixed - at.keys.begin / a_.cut.fixed;
    } else {
      n = chunks_of(tiles_[b], length_);
    }
    return n > a_.cut.max_partials ? 1 : max(1, n);
  }

  __device__ void count_chunks() {
    int32_t chunks = 0, partials = 0, room = 0;
    for (int32_t first = 0; first < blocks_; first += kPlanThreads) {
      const int32_t b = first + threadIdx.x;
      int32_t n = b < blocks_ ? wished(b) : 0;
      int32_t count[2] = {n, n > 1 ? n : 0}, total[2];
      scan(count, total);
      // The first blocks have the room; who would go beyond it is not cut.
      const bool cut = n > 1 && room + count[1] + n <= a_.cut.max_partials;
      room += total[1];
      int32_t kept[2] = {cut ? n : min(n, 1), cut ? n : 0};
      scan(kept, total);
      if (b < blocks_) {
        chunk_starts_[b] = chunks + kept[0];
        partial_starts_[b] = cut ? partials + kept[1] : -1;
      }
      chunks += total[0];
      partials += total[1];
    }
    if (threadIdx.x == 0) chunk_starts_[blocks_] = chunks;
    __syncthreads();
  }

  // Chunks go to the list by their block's length, in eighths of the longest, so that CTAs end
  // together; those of about a length in the order of blocks.
  static constexpr int32_t kRanks = 8;
  __device__ int32_t chunks(int32_t b) const { return chunk_starts_[b + 1] - chunk_starts_[b]; }
  __device__ int32_t rank_of(int32_t b) const {
    if (longest_ == 0) return 0;
    const int32_t n = chunks(b);
    const int32_t length = max(1, (tiles_[b] + n - 1) / n);  // a block may see no keys
    return max(0, kRanks - 1 - (length * kRanks - 1) / longest_);
  }
  // orders_[b]: how many chunks of its rank come before those of block b.
  __device__ void order_chunks() {
    for (int32_t first = 0; first < blocks_; first += kPlanThreads) {
      const int32_t b = first + threadIdx.x;
      const int32_t rank = b < blocks_ ? rank_of(b) : -1;
      for (int32_t r = 0; r < kRanks; r += 2) {
        int32_t count[2] = {rank == r ? chunks(b) : 0, rank == r + 1 ? chunks(b) : 0}, total[2];
        scan(count, total);
        if (rank == r) orders_[b] = of_ranks_[r] + count[0];
        if (rank == r + 1) orders_[b] = of_ranks_[r + 1] + count[1];
        of_ranks_[r] += total[0];
        of_ranks_[r + 1] += total[1];
      }
    }
    __syncthreads();
  }
  // Where block b's chunks begin in the list.
  __device__ int32_t place_of(int32_t b) const {
    int32_t at = orders_[b];
    for (int32_t r = rank_of(b); r > 0; --r) at += of_ranks_[r - 1];
    return at;
  }

  // Keys of chunk i of n.
  __device__ KeyRange keys_of(const Block& b, int32_t i, int32_t n) const {
    if (n == 1) return b.keys;
    if (a_.cut.fixed > 0) {
      const int32_t first = (b.keys.begin / a_.cut.fixed + i) * a_.cut.fixed;
      return {max(b.keys.begin, first), min(b.keys.end, first + a_.cut.fixed)};
    }
    const int64_t tiles = b.tiles();
    const auto from = static_cast<int32_t>(tiles * i / n),
               to = static_cast<int32_t>(tiles * (i + 1) / n);
    return {max(b.keys.begin, (b.first_tile() + from) * a_.tile),
            min(b.keys.end, (b.first_tile() + to) * a_.tile)};
  }

  __device__ void write(int32_t c) const {
    const int32_t b = find(chunk_starts_, blocks_, c);
    const Block at = block(b);
    const int32_t i = c - chunk_starts_[b], n = chunks(b);
    const KeyRange keys = keys_of(at, i, n);
    const int32_t page_start = a_.at.page_indptr[at.seq];
    Chunk& to = a_.lists[blockIdx.y].chunks[place_of(b) + i];
    to.pages_from = keys.begin / a_.tile * a_.tile;
    const int32_t first = to.pages_from / a_.page_size;
    const int32_t pages = (keys.end + a_.page_size - 1) / a_.page_size;
    for (int32_t p = lane(); p < kChunkPages; p += 32)
      to.pages[p] = first + p < pages ? a_.at.page_slots[page_start + first + p] : 0;
    if (lane() > 0) return;
    to.q_start = a_.at.q_indptr[at.seq];
    to.q_len = at.rows.q_len;
    to.kv_len = at.rows.kv_len;
    to.first_row = at.rows.first_row;
    to.rows = at.rows.rows;
    to.begin = keys.begin;
    to.end = keys.end;
    to.page_start = page_start;
    to.index = i;
    to.count = n;
    to.partial = n > 1 ? partial_starts_[b] : -1;
  }

  const PlanArgs& a_;
  PlanShared& sm_;
  const int32_t window_;
  int32_t *block_starts_, *tiles_, *chunk_starts_, *partial_starts_, *orders_;
  int32_t blocks_ = 0, total_ = 0, length_ = 0, longest_ = 0, of_ranks_[kRanks] = {};
};

__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const __grid_constant__ PlanArgs args) {
  __shared__ PlanShared shared;
  device::pdl_wait();
  device::pdl_trigger();
  Planner(args, shared).run();
}

}  // namespace attune::attention::fa3
