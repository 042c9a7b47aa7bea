// Copies pages of a KV cache between the device's pool and the host's. Byte strides only: what the
// bytes are does not matter. A piece is one page in one layer.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace attune::ops {

// Slots of one page in both pools.
struct KvCopyPage {
  int32_t host, device;
};

// Of one token in a page of the device's pool: row r at offset + r * stride + token * token_stride.
struct KvCopyRows {
  int32_t count = 0, bytes = 0;
  int64_t offset = 0, stride = 0, token_stride = 0;
};

// How a GPU goes about it; zeros: what was measured to be best for the direction and sizes.
struct KvCopyTuning {
  int32_t ctas = 0;             // multiprocessors that take part
  int32_t warps = 0;            // of each; every one has a ring of its own
  int32_t tile_bytes = 0;       // of one bulk copy
  int32_t slots = 0;            // tiles in each ring
  int32_t stores = 0;           // tiles whose stores may still read shared memory, below slots
  double bytes_per_second = 0;  // stores of all CTAs are begun at most at this rate
  int32_t late = 0;             // tiles of each warp that may make up for a delay
};

// Every page of `pages` in every layer of [first_layer, first_layer + layers).
struct KvCopyParams {
  bool to_host = false;
  const KvCopyPage* pages = nullptr;  // [count], host memory, read by the call
  int32_t count = 0;                  // at most kMostKvCopyPages
  int32_t first_layer = 0, layers = 0;
  // The piece of (slot, layer) is at base + slot * slot_stride + layer * layer_stride.
  char *host = nullptr, *device = nullptr;
  int64_t host_slot_stride = 0, host_layer_stride = 0;
  int64_t device_slot_stride = 0, device_layer_stride = 0;
  // Slots outside of [0, host_slots) or [0, device_slots): the page is not copied, and counted.
  int32_t host_slots = 0, device_slots = 0;
  int64_t piece_bytes = 0;
  // Where the pools' orders differ. 0: a piece has the same bytes on both sides. Else in the host's
  // pool token t of a piece is at t * host_token_stride, its K rows then its V rows without a gap.
  int32_t tokens = 0;
  int64_t host_token_stride = 0;
  KvCopyRows k, v;
  int32_t* bad = nullptr;  // pages that were not copied are added, once each; the host's, pinned
  KvCopyTuning tuning;
};
inline constexpr int32_t kMostKvCopyPages = 1024;

}  // namespace attune::ops
