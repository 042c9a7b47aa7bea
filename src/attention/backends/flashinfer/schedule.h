// Which block of a launch does which part of a batch, in the arrays that FlashInfer's kernels read
// (its scheduler.cuh, DecodePlan and PrefillPlan): written into memory of the caller's, so that a
// step allocates nothing and copies once. Pure; any thread.
#pragma once

#include <cstdint>

#include "attention/backend.h"

namespace attune::attention::flashinfer {

// What the sizes of a schedule follow from.
struct ScheduleLimits {
  int32_t max_seqs = 0, max_tokens = 0, q_heads = 0, kv_heads = 0, page_size = 0;
  int32_t multiprocessors = 0;
  int32_t row_blocks_per_sm = 0;  // of the kernel without tensor cores
  int32_t max_tile = 128;         // query rows (tile.h)

  int32_t group() const { return q_heads / kv_heads; }
};

// Byte offsets from the start of the schedule's memory, the same for every batch of the same
// limits: what a graph has captured stays right.
struct ScheduleLayout {
  int64_t valid = 0, request = 0, q_tile = 0, kv_chunk = 0, chunk_tokens = 0, rows = 0,
          o_indptr = 0, row_kv_len = 0, merge_indptr = 0, bytes = 0;
  int32_t max_blocks = 0;
};
ScheduleLayout schedule_layout(const ScheduleLimits& limits);
// The most rows of partial results, [q_heads, head_dim] each.
int64_t max_partial_rows(const ScheduleLimits& limits);

struct Schedule {
  int32_t tile = 0;      // query rows (tokens x heads of a KV head) of a block
  int32_t blocks = 0;    // of the launch; those after the batch's own are not valid
  int32_t max_rows = 0;  // of the merge's launch
  bool split = false;    // keys are split into chunks, whose results are merged
};

enum class Split : uint8_t { kAuto, kNever };

// Query tiles against chunks of keys, each chunk as long as it can be for the tiles to fill the GPU
// once. Except for prefill, blocks, tile, max_rows and split follow from the numbers of sequences
// and of queries (max_q_len) alone, so that they hold for a captured graph's later batches.
Schedule schedule_tiles(const Batch& batch, const ScheduleLimits& limits, Split split,
                        const ScheduleLayout& layout, char* to);

// Rows, each against chunks of its own keys; q_heads == kv_heads, one query per sequence at most.
Schedule schedule_rows(const Batch& batch, const ScheduleLimits& limits,
                       const ScheduleLayout& layout, char* to);

}  // namespace attune::attention::flashinfer
