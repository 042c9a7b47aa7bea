// What a step's device plan writes and its kernels read: plain data, in device memory.
#pragma once

#include <cstdint>

#include "attention/backend.h"
#include "kv/layout/layout.h"

namespace attune::attention::fa3 {

// Keys of a unit, of which tiles are made: what is copied at once of larger pages.
inline constexpr int32_t kUnitShift = 6, kUnit = 1 << kUnitShift;
// Tokens of a page below which rows are copied 16 bytes a thread, as their boxes would take longer;
// the swizzle of boxes repeats every 8 rows.
inline constexpr int32_t kLeastBox = 8;
// Keys of a tile: what a kernel loads, multiplies and masks at once. 16 KiB, but for many rows.
constexpr int32_t decode_tile(int64_t key_bytes, int32_t rows) {
  return rows < 64 && key_bytes <= 128 ? 2 * kUnit : kUnit;
}
// What chunks are made of, whatever the keys' type: whole tiles.
constexpr int32_t planned_tile(int32_t rows) {
  return rows < 64 ? 2 * kUnit : kUnit;
}
// Page ids that a chunk carries, so that its first loads need no look-up: a tile's at least.
inline constexpr int32_t kChunkPages = 64;

// Query heads that share a KV head, and so tiles; rows are divided by it, which kernels do by a
// product (range.cuh).
struct Group {
  int32_t size = 1;
  uint32_t inverse = 0;  // 2^32 / size, rounded up

  Group() = default;
  constexpr explicit Group(int32_t heads)
      : size(heads), inverse(static_cast<uint32_t>(((uint64_t{1} << 32) + heads - 1) / heads)) {}

  // Rows below it are divided rightly: size * inverse is 2^32 + over, and x * over has to stay
  // below 2^32 for the product's upper half to be x / size.
  constexpr int64_t divides_below() const {
    const int64_t over = int64_t{inverse} * size - (int64_t{1} << 32);
    return over == 0 || size == 1 ? INT32_MAX : (int64_t{1} << 32) / over;
  }
};
static_assert(Group(8).divides_below() == INT32_MAX);
static_assert((Group(1023).divides_below() - 1) * Group(1023).inverse >> 32 ==
              (Group(1023).divides_below() - 1) / 1023);

// Some keys for a block of query rows of one sequence; one work item for each group of heads. Row r
// of a sequence is query head r % group (of a group) of query r / group.
struct alignas(16) Chunk {
  int32_t q_start, q_len, kv_len;  // the sequence's: first token, queries, keys
  int32_t first_row, rows;         // of the block
  int32_t begin, end;              // keys; begin is a multiple of a tile unless a window sets it
  int32_t page_start;              // in page_slots, of the sequence's key 0
  int32_t index, count;            // among the chunks of its rows
  int32_t partial;                 // of chunk 0: its slot of partial results; -1: not split
  int32_t pages_from;              // the key with whose page `pages` begin: a tile's first
  int32_t unused[4];
  int32_t pages[kChunkPages];
};
inline constexpr int32_t kChunkWords = 16;  // without the pages

// Chunks, the longest about first.
struct WorkList {
  int32_t* num_chunks;
  Chunk* chunks;
};

// How a block's keys are cut.
struct Cut {
  int32_t ctas = 0;        // of a launch: what the work is spread over
  int32_t num_splits = 0;  // chunks of a block; 0: by a cost model
  // Keys of a chunk, counted from key 0, whole tiles: a row's sums then depend on its
  // position alone. 0: as it suits the batch.
  int32_t fixed = 0;
  int32_t max_partials = 0;  // there is room for, of each group of heads
  // In tiles: what an item costs that begins and ends, a launch that has parts to add up, and one
  // that leaves no room for the next to begin beside its end.
  float item_cost = 0, split_cost = 0, late_cost = 0;
};

// A step's layers may have several; there is a plan for each.
inline constexpr int32_t kMostWindows = 4;

struct PlanArgs {
  Batch::Arrays at;
  int32_t num_seqs = 0;
  bool causal = true;
  Group group;
  int32_t heads = 0, block_rows = 0, page_size = 0;  // heads, group: DecodeArgs'
  int32_t tile = kUnit;
  Cut cut;
  int32_t num_windows = 0;
  int32_t windows[kMostWindows] = {};
  WorkList lists[kMostWindows] = {};
  int32_t* scratch = nullptr;  // [num_windows * kPlanCtas][scratch_stride]
  int64_t scratch_stride = 0;  // plan_scratch()
  int32_t max_blocks = 0;
};
inline constexpr int32_t kPlanCtas = 16;  // of each window: each plans all and writes its share
constexpr int64_t plan_scratch(int32_t max_seqs, int32_t max_blocks) {
  return int64_t{max_seqs} + 1 + 4 * (int64_t{max_blocks} + 1);
}

struct DecodeArgs {
  Batch::Arrays at;
  WorkList work;
  LayerParams layer;
  kv::PagedKvView kv;
  Io io;
  // Query heads of a group make rows of one item; `share` groups have the same KV head.
  Group group;
  int32_t heads = 0, share = 1;  // heads: of items
  bool causal = true;
  bool early = false;  // the ring may start before the kernels before this one have ended
  int32_t num_slots = 0, page_size = 0, page_shift = 0;  // num_slots: that a batch may name
  int32_t fixed = 0;                                     // Cut::fixed
  float* partials = nullptr;   // [max_partials * heads, block_rows, dim + 4]
  float* scratch = nullptr;    // [ctas, block_rows, dim * 2], with `fixed`
  int32_t* arrived = nullptr;  // [max_partials * heads], zeros between launches
  int32_t* taken = nullptr;    // the counter that work is taken from; 0 between launches
};

}  // namespace attune::attention::fa3
