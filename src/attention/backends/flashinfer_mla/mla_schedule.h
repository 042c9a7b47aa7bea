// Which cluster of blocks does which part of a batch, in the arrays that FlashInfer's latent
// kernels read (its scheduler.cuh, MLAPlan): query tiles against chunks of keys of one length, each
// given to the cluster with the least to do. Written into memory of the caller's; nothing is
// allocated after the first batches.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "attention/backend.h"
#include "attention/backends/flashinfer/balance.h"

namespace attune::attention::flashinfer_mla {

struct ScheduleLimits {
  int32_t max_seqs = 0, max_tokens = 0, heads = 0, multiprocessors = 0;
};

// Arrays by work item, in the order of their clusters.
enum WorkArray {
  kQIndptr,        // the item's sequence begins at this query row
  kKvIndptr,       // and at this entry of page_slots
  kPartialIndptr,  // where its partial result goes, in rows; -1: it is the result
  kQLen,
  kKvLen,
  kQStart,   // of its tile, in rows (tokens x heads) of the sequence
  kKvStart,  // its keys
  kKvEnd,
  kNumWorkArrays
};
// Arrays by block: a range of rows of the output, and the partial results that make it.
enum MergeArray { kRowStart, kRowEnd, kPartialStart, kPartialEnd, kPartialStride, kNumMergeArrays };

struct Schedule {
  int32_t cluster = 1, clusters = 0;  // blocks to a cluster, clusters
  int32_t capacity = 0;               // of the work arrays
  int32_t max_rows = 0;               // query rows of the batches that this serves
  // In 4-byte elements from the start of the schedule's memory.
  int64_t rows = 0;         // [1], of the batch
  int64_t work_indptr = 0;  // [clusters + 1]
  std::array<int64_t, kNumMergeArrays> merge{};
  std::array<int64_t, kNumWorkArrays> work{};
  int64_t used = 0;
};

// Elements that a schedule takes at most.
int64_t max_schedule_elements(const ScheduleLimits& limits);
// Rows of partial results, [512], at most.
int64_t max_partial_rows(const ScheduleLimits& limits);

class Scheduler {
 public:
  explicit Scheduler(const ScheduleLimits& limits) : limits_(limits) {}

  // Except for prefill, all of the result follows from the numbers of sequences and of queries
  // (max_q_len) alone, so that it holds for a captured graph's later batches.
  // REQUIRES: num_seqs > 0, causal.
  Schedule make(const Batch& batch, int32_t* to);

 private:
  struct Work {
    int32_t cluster;
    std::array<int32_t, kNumWorkArrays> values;
  };
  // Queries [first, first + q_len) of a sequence, which see kv_len keys at most.
  struct Part {
    int32_t q_indptr, kv_indptr, q_len, kv_len;
  };

  template <typename Fn>
  void for_each_tile(const Batch& batch, Fn fn) const;
  void add_tile(const Part& part, int32_t tile, int32_t keys, int32_t* to);

  const ScheduleLimits limits_;
  Schedule made_;
  int32_t tile_rows_ = 0, chunk_ = 0, merges_ = 0, partial_rows_ = 0;
  std::vector<Work> works_;
  flashinfer::Balance clusters_;
};

}  // namespace attune::attention::flashinfer_mla
