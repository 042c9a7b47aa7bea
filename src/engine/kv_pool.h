// The device's KV pages and each layer's view of them.
#pragma once

#include <vector>

#include "attune/status.h"
#include "device/device.h"
#include "kv/layout/layout.h"

namespace attune::engine {

struct KvPool {
  device::Buffer memory;
  std::vector<kv::PagedKvView> views;  // one per layer

  // On the CPU the layers' pieces of one page lie side by side: memory is touched a page at a time,
  // not a huge page in every layer. On a GPU a layer's pages lie together: a step's attention over
  // one layer then stays within few of the memory's large pages. Errors: resource_exhausted.
  static Result<KvPool> create(const kv::KvGeometry& geometry, int32_t num_slots,
                               device::Device& device) {
    KvPool pool;
    ATTUNE_ASSIGN_OR_RETURN(pool.memory,
                            device.allocate(geometry.page_bytes() * num_slots, "the KV pool"));
    const bool apart = device.info().kind == device::Kind::kCuda;
    for (int32_t i = 0; i < geometry.layers; ++i) {
      const int64_t first = i * geometry.piece_bytes() * (apart ? num_slots : 1);
      pool.views.push_back(kv::make_view(geometry, pool.memory.as<char>() + first, num_slots));
      if (!apart) pool.views.back().page_stride = geometry.page_bytes();
    }
    return pool;
  }
};

}  // namespace attune::engine
