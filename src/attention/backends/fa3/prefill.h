// Batches of many queries by the wgmma kernel (cuda/prefill.cuh): what it serves, its memory, its
// plan and launches. Also of MLA's up-projected rows.
#pragma once

#include <cstdint>

#include "attention/backend.h"
#include "attention/backends/fa3/cuda/prefill_params.h"
#include "device/device.h"

namespace attune::attention::fa3 {

class Prefill {
 public:
  // Whether there is a kernel for calls within the limits: these head sizes, pages that divide a
  // tile or are whole tiles. Over caches of bfloat16, and where K's heads are as large as V's, also
  // pages of binary16 and e4m3.
  static bool has_kernel(const Limits& limits);
  static int64_t workspace_bytes(const Limits& limits, const device::DeviceInfo& info);

  // REQUIRES: has_kernel(). Errors: status().
  Prefill(device::Device& device, const Limits& limits, void* workspace);
  const Status& status() const { return status_; }

  // Not for trees.
  void plan_on(const Batch& batch, device::Stream& stream) const;
  // REQUIRES: such a cache, q and out are bfloat16, plan_on() of the same batch.
  void run(const Batch& batch, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const;

 private:
  Limits limits_;
  int32_t ctas_ = 0;
  int64_t near_bytes_ = 0;
  int32_t tile_heads_ = 0, tile_tokens_ = 0;
  int32_t heads_ = 0, block_tokens_ = 0;  // of a launch; of a block
  device::Buffer memory_;                 // arrivals, counters, blocks, the plan's scratch
  PrefillCounters* counters_ = nullptr;
  PrefillBlock* blocks_ = nullptr;
  int32_t* scratch_ = nullptr;
  int32_t max_items_ = 0;  // of split keys
  float *part_sums_ = nullptr, *part_scales_ = nullptr;
  Status status_;
};

}  // namespace attune::attention::fa3
