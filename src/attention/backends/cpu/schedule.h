// The host part of a step: a batch cut into tiles, and tiles over threads.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/backends/cpu/kernel.h"

namespace attune::attention::cpu {

// What a thread takes at once: a tile, or one split of a tile that is too large for a fair share.
struct WorkItem {
  int32_t tile = 0;
  int32_t split = -1;  // -1: all
};

struct SplitTile {
  int64_t partials = 0;  // floats into the partial area
  int32_t left = 0;      // splits not done yet; whoever ends the last one merges
};

struct Schedule {
  std::vector<Tile> tiles;
  std::vector<SplitTile> split_of;  // by tile
  std::vector<WorkItem> items;      // large ones first
  int64_t macs = 0;                 // multiply-adds of all, roughly
};

// Floats of partial results that no schedule exceeds.
int64_t partial_area_floats(const Limits& limits, const Kernels& kernels);

// Fills `out`, whose vectors are reused. The assignment changes no result, only who computes it.
void make_schedule(const Batch& batch, const Limits& limits, const Kernels& kernels, Schedule* out);

}  // namespace attune::attention::cpu
