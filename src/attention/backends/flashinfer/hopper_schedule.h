// Which block does which query tiles, for FlashInfer's prefill kernel of sm90 (its scheduler.cuh,
// PrefillSM90Plan): the longest first, each to the block with the least to do. Nothing is allocated
// after the first batches.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "attention/backends/flashinfer/balance.h"
#include "attention/backends/flashinfer/schedule.h"

namespace attune::attention::flashinfer {

// Arrays by work item, in the order of their blocks.
enum HopperArray { kQTile, kHead, kQIndptr, kKvIndptr, kQLen, kKvLen, kNumHopperArrays };

// In 4-byte elements from the start of the schedule's memory.
struct HopperSchedule {
  int64_t work_indptr = 0;  // [multiprocessors + 1]
  std::array<int64_t, kNumHopperArrays> arrays{};
  int64_t used = 0;
};

class HopperScheduler {
 public:
  HopperScheduler(const ScheduleLimits& limits, int32_t tile) : limits_(limits), tile_(tile) {}

  // Whether its whole tiles of single heads, with all their keys, fill the GPU.
  bool suits(const Batch& batch) const;
  int64_t max_elements() const;
  HopperSchedule make(const Batch& batch, int32_t* to);

 private:
  struct Tile {
    int32_t seq, index, keys;
  };
  struct Work {
    int32_t block, tile, head;
  };

  const ScheduleLimits limits_;
  const int32_t tile_;
  std::vector<Tile> tiles_;
  std::vector<Work> works_;
  Balance blocks_;
};

}  // namespace attune::attention::flashinfer
