// The prefill kernel's work list, made on the device from the lengths there, once per step. One
// CTA.
#pragma once

#include "attention/backends/fa3/cuda/prefill_params.h"
#include "device/cuda/launch.cuh"

namespace attune::attention::fa3 {

inline constexpr int kPrefillPlanThreads = 1024;

struct PrefillSequence {
  int q_len, kv_len, blocks;

  __device__ PrefillSequence(const PrefillPlanParams& p, int s)
      : q_len(p.q_indptr[s + 1] - p.q_indptr[s]),
        kv_len(p.kv_len[s]),
        blocks((q_len + p.block_tokens - 1) / p.block_tokens) {}
  __device__ int tiles() const { return (kv_len + kPrefillKeys - 1) / kPrefillKeys; }
  // Of keys that block j sees, at least one; never falls with j.
  __device__ int tiles_of(const PrefillPlanParams& p, int j) const {
    const int end = p.causal ? kv_len - q_len + min(q_len, (j + 1) * p.block_tokens) : kv_len;
    return max((end + kPrefillKeys - 1) / kPrefillKeys, 1);
  }
  // Blocks that see more than so many tiles.
  __device__ int longer_than(const PrefillPlanParams& p, int count) const {
    if (count < 1) return blocks;
    if (!p.causal) return tiles() > count ? blocks : 0;
    const int needed = count * kPrefillKeys - (kv_len - q_len);  // queries, to see no more
    if (needed < 0) return blocks;
    return needed >= q_len ? 0 : blocks - needed / p.block_tokens;
  }
};

class PrefillPlanner {
 public:
  __device__ PrefillPlanner(const PrefillPlanParams& p)
      : p_(p),
        warp_(static_cast<int>(threadIdx.x / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void run() {
    find_sequences();
    const int length = part_length();
    const int sets = length > 0 ? 1 : p_.heads / near_heads_;  // of heads
    if (threadIdx.x == 0) {
      p_.counters->blocks = length > 0 ? 0 : blocks_ * sets;
      p_.counters->heads = p_.heads / sets;
    }
    __syncthreads();
    for (int s = warp_; s < p_.num_seqs; s += kPrefillPlanThreads / 32) {
      const PrefillSequence sequence(p_, s);
      for (int j = lane_; j < sequence.blocks; j += 32) {
        if (length > 0) {
          write_parts(s, sequence, j, length);
        } else {
          write(s, sequence, j, sets);
        }
      }
    }
  }

 private:
  // Of each the number of blocks before it, and its group: those whose keys fit the L2 together,
  // the longest first. Where the longest sequence's do not, heads are gone over in sets.
  __device__ void find_sequences() {
    __shared__ int blocks, longest;
    if (threadIdx.x == 0) blocks = longest = 0;
    __syncthreads();
    for (int s = static_cast<int>(threadIdx.x); s < p_.num_seqs; s += kPrefillPlanThreads) {
      const PrefillSequence mine(p_, s);
      if (mine.blocks > 0) atomicMax(&longest, mine.tiles());
    }
    __syncthreads();
    near_heads_ = p_.heads;
    while (near_heads_ % 2 == 0 && longest * near_heads_ > p_.near_tiles) near_heads_ /= 2;
    const int near = max(p_.near_tiles / near_heads_, 1);
    for (int s = static_cast<int>(threadIdx.x); s < p_.num_seqs; s += kPrefillPlanThreads) {
      const PrefillSequence mine(p_, s);
      int64_t ahead = 0;
      int before = 0;
      for (int i = 0; i < p_.num_seqs; ++i) {
        const PrefillSequence other(p_, i);
        if (other.blocks == 0) continue;
        if (i < s) before += other.blocks;
        if (other.kv_len > mine.kv_len || (other.kv_len == mine.kv_len && i < s))
          ahead += other.tiles();
      }
      p_.groups[s] = static_cast<int32_t>(ahead / near);
      p_.block_starts[s] = before;
      if (s == p_.num_seqs - 1) blocks = before + mine.blocks;
    }
    __syncthreads();
    blocks_ = blocks;
  }

  // Tiles that one part of a block's keys has at most; 0: keys are not split. Where there is too
  // little work for all CTAs, each warp weighs one number of parts by when the last CTA is done.
  __device__ int part_length() {
    __shared__ float costs[32];
    __shared__ int lengths[32];
    int longest = 1;
    if (int64_t{2} * blocks_ * p_.heads > p_.max_items || p_.num_splits == 1) return 0;
    for (int b = lane_; b < blocks_; b += 32) longest = max(longest, tiles_of_block(b));
    longest = __reduce_max_sync(0xffffffff, longest);
    const int parts = warp_ + 1, length = (longest + parts - 1) / parts;
    const float cost = cost_of(length, parts);
    if (lane_ == 0) {
      costs[warp_] = cost;
      lengths[warp_] = length;
    }
    __syncthreads();
    int best = 0;
    for (int i = 1; i < 32; ++i)
      if (costs[i] < costs[best]) best = i;
    return best == 0 ? 0 : lengths[best];
  }
  __device__ float cost_of(int length, int parts) const {
    if (p_.num_splits > 0 && parts > p_.num_splits) return INFINITY;
    int items = 0, work = 0, shortest = 1 << 30, longest = 0;
    for (int b = lane_; b < blocks_; b += 32) {
      const int tiles = tiles_of_block(b), count = (tiles + length - 1) / length;
      items += count;
      work += tiles;
      shortest = min(shortest, tiles / count);
      longest = max(longest, (tiles + count - 1) / count);
    }
    items = __reduce_add_sync(0xffffffff, items) * p_.heads;
    work = __reduce_add_sync(0xffffffff, work) * p_.heads;
    shortest = __reduce_min_sync(0xffffffff, shortest);
    longest = __reduce_max_sync(0xffffffff, longest);
    if (items > p_.max_items) return INFINITY;
    if (p_.num_splits > 0) return static_cast<float>(-parts);  // as many as there is room for
    // In tiles: of beginning and ending an item, and of passing its sums through memory.
    const float item_cost = parts == 1 ? 1.0f : 2.5f;
    const float waves = static_cast<float>(items) / static_cast<float>(p_.ctas);
    const float even = static_cast<float>(work) / static_cast<float>(p_.ctas) + waves * item_cost;
    const float behind = (ceilf(waves) - waves) * (static_cast<float>(shortest) + item_cost);
    return fmaxf(static_cast<float>(longest) + item_cost, even + behind);
  }
  __device__ int tiles_of_block(int b) const {
    int low = 0, high = p_.num_seqs;  // the last sequence that begins at b or before
    while (high - low > 1) {
      const int mid = (low + high) / 2;
      (p_.block_starts[mid] <= b ? low : high) = mid;
    }
    return PrefillSequence(p_, low).tiles_of(p_, b - p_.block_starts[low]);
  }

  __device__ PrefillBlock block(int s, const PrefillSequence& sequence, int j) const {
    PrefillBlock block;
    block.first_row = p_.q_indptr[s] + j * p_.block_tokens;
    block.tokens = min(p_.block_tokens, sequence.q_len - j * p_.block_tokens);
    block.position = sequence.kv_len - sequence.q_len + j * p_.block_tokens;
    block.kv_len = sequence.kv_len;
    block.first_page = p_.starts[s];
    block.end_tile = sequence.tiles_of(p_, j);
    return block;
  }
  // Behind earlier groups' blocks and, for each set of heads, those of its own group that see more.
  __device__ void write(int s, const PrefillSequence& sequence, int j, int sets) const {
    PrefillBlock b = block(s, sequence, j);
    const int group = p_.groups[s], tiles = b.end_tile;
    int earlier = 0, own = sequence.blocks, longer = sequence.blocks - 1 - j;
    for (int i = 0; i < p_.num_seqs; ++i) {
      if (i == s || p_.groups[i] > group) continue;
      const PrefillSequence other(p_, i);
      if (p_.groups[i] < group) {
        earlier += other.blocks;
      } else {
        own += other.blocks;
        longer += other.longer_than(p_, i < s ? tiles - 1 : tiles);
      }
    }
    for (int set = 0; set < sets; ++set) {
      b.first_head = set * (p_.heads / sets);
      p_.blocks[earlier * sets + set * own + longer] = b;
    }
  }
  // In any order: which block has which place does not matter to its result.
  __device__ void write_parts(int s, const PrefillSequence& sequence, int j, int length) const {
    PrefillBlock part = block(s, sequence, j);
    const int tiles = part.end_tile, parts = (tiles + length - 1) / length;
    part.parts = parts;
    part.first_part = atomicAdd(&p_.counters->blocks, parts);
    for (int i = 0; i < parts; ++i) {
      part.part = i;
      part.first_tile = static_cast<int>(int64_t{tiles} * i / parts);
      part.end_tile = static_cast<int>(int64_t{tiles} * (i + 1) / parts);
      p_.blocks[part.first_part + i] = part;
    }
  }

  const PrefillPlanParams& p_;
  const int warp_, lane_;
  int blocks_ = 0;
  int near_heads_ = 1;
};

__global__ void __launch_bounds__(kPrefillPlanThreads)
    prefill_plan_kernel(const __grid_constant__ PrefillPlanParams p) {
  device::pdl_wait();
  device::pdl_trigger();
  PrefillPlanner(p).run();
}

}  // namespace attune::attention::fa3
