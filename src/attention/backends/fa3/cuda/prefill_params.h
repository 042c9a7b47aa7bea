// What the prefill kernel and those who launch it share; plain data.
#pragma once

#include <cstdint>

#include "attention/backends/fa3/work.h"

namespace attune::attention::fa3 {

// A tile: rows of queries (each a token and one of the heads that share it), and keys.
inline constexpr int kPrefillRows = 128, kPrefillKeys = 128;
// Rows that one consumer warpgroup holds.
inline constexpr int kGroupRows = 64;

// Queries that follow each other in a sequence, for which a CTA goes over keys from the last to the
// first; made by the plan, for some heads of the launch.
struct alignas(16) PrefillBlock {
  int32_t first_row = 0;  // of q and out
  int32_t tokens = 0;
  int32_t position = 0;  // of the first query; negative where a query sees nothing
  int32_t kv_len = 0;
  int32_t first_page = 0;                // in page_slots, or the first row of dense keys
  int32_t first_tile = 0, end_tile = 0;  // of keys, what is seen of them
  int32_t part = 0, parts = 1;           // of the keys of these queries
  int32_t first_part = 0;                // where the parts' results lie
  int32_t first_head = 0;                // of the launch's
  int32_t unused = 0;
};

struct PrefillCounters {
  int32_t blocks = 0, heads = 1;  // entries, and of each so many heads
  uint32_t taken = 0, done = 0;   // 0 before and after a launch
};

struct PrefillParams {
  const PrefillBlock* blocks = nullptr;
  PrefillCounters* counters = nullptr;
  const int32_t* page_slots = nullptr;  // null: keys lie dense
  void* out = nullptr;
  float* lse = nullptr;          // [rows, q_heads] or null
  const float* sinks = nullptr;  // [q_heads] or null
  // Parts of split keys, by [part][head of the launch][warpgroup]: sums [v_dim / 2][thread], as
  // threads hold them; highest scores and denominators [thread] of two rows; arrivals at a block's
  // first part, 0 before and after.
  float *part_sums = nullptr, *part_scales = nullptr;
  uint32_t* arrivals = nullptr;
  int64_t out_stride = 0;  // elements
  int32_t q_heads = 0, group = 0;
  int32_t tile_heads = 0;   // heads that share a tile's tokens, a divisor of group
  int32_t tile_tokens = 0;  // tokens of a warpgroup: kGroupRows / tile_heads
  // A row of a warpgroup divided by tile_heads: times this, shifted by 16.
  uint32_t token_factor = 0;
  int32_t num_slots = 0, page_size = 0, box_rows = 0;
  // Of pages below kLeastBox and of caches of 8 bits; strides in bytes.
  const char *k = nullptr, *v = nullptr;
  uint32_t page_stride = 0;
  int64_t k_head_stride = 0, k_token_stride = 0, v_head_stride = 0, v_token_stride = 0;
  int32_t window = 0;
  bool causal = true;
  float to_cap = 0;   // 0: none; else scores are tanh(to_cap * q.k)
  float to_log2 = 0;  // of a score, to the exponent of 2
};

constexpr uint32_t prefill_token_factor(int32_t tile_heads) {
  return (65535u + static_cast<uint32_t>(tile_heads)) / static_cast<uint32_t>(tile_heads);
}

struct PrefillPlanParams {
  const int32_t *q_indptr = nullptr, *kv_len = nullptr;
  const int32_t* starts = nullptr;  // page_indptr, or of dense keys kv_start
  int32_t num_seqs = 0;
  int32_t heads = 0;         // of a launch: q_heads / tile_heads
  int32_t block_tokens = 0;  // two warpgroups'
  bool causal = true;
  int32_t near_tiles = 0;  // of keys, each for one head, that shall stay in the L2 together
  int32_t ctas = 0;
  int32_t num_splits = 0;  // of the keys of a block at most; 0: as it suits
  int32_t max_items = 0;   // blocks or parts times heads where keys are split
  int32_t *groups = nullptr, *block_starts = nullptr;  // [num_seqs], scratch
  PrefillBlock* blocks = nullptr;
  PrefillCounters* counters = nullptr;
};

}  // namespace attune::attention::fa3
