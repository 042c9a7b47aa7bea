// How pages lie in the host pool, and how they are found there.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kv/layout/layout.h"

namespace attune::kv {

// A physical place in the host pool.
using HostSlot = base::StrongId<struct HostSlotTag>;

// SGLang's names. A piece is one page in one layer, K then V, as on the device.
enum class HostLayout : uint8_t {
  kLayerFirst,       // [layers, slots, piece]
  kPageFirst,        // [slots, page_size, layers, K of all heads then V of all heads]: by token
  kPageFirstDirect,  // [slots, layers, piece]
};
constexpr std::string_view host_layout_name(HostLayout layout) {
  return layout == HostLayout::kLayerFirst  ? "layer_first"
         : layout == HostLayout::kPageFirst ? "page_first"
                                            : "page_first_direct";
}
inline std::optional<HostLayout> parse_host_layout(std::string_view name) {
  for (HostLayout l :
       {HostLayout::kLayerFirst, HostLayout::kPageFirst, HostLayout::kPageFirstDirect})
    if (name == host_layout_name(l)) return l;
  return std::nullopt;
}

// The host pool as copies see it, in bytes. The piece of (slot, layer) is at base + slot *
// slot_stride + layer * layer_stride, whole; with kPageFirst its token t is at that + t *
// token_stride: the K rows of all heads, then the V rows.
struct HostView {
  char* base = nullptr;
  HostLayout layout = HostLayout::kLayerFirst;
  int32_t num_slots = 0;
  int64_t slot_stride = 0, layer_stride = 0;
  int64_t token_stride = 0;  // kPageFirst only

  char* piece(HostSlot slot, int32_t layer) const {
    return base + int64_t{slot.value} * slot_stride + layer * layer_stride;
  }
};

inline HostView make_host_view(const KvGeometry& g, HostLayout layout, void* base,
                               int32_t num_slots) {
  HostView v{static_cast<char*>(base), layout, num_slots, g.page_bytes(), g.piece_bytes(), 0};
  if (layout == HostLayout::kLayerFirst) {
    v.slot_stride = g.piece_bytes();
    v.layer_stride = num_slots * g.piece_bytes();
  } else if (layout == HostLayout::kPageFirst) {
    v.layer_stride = g.piece_bytes() / g.page_size;
    v.token_stride = v.layer_stride * g.layers;
  }
  return v;
}

// The bytes of one page in the host pool: `count` runs of `bytes`, `stride` apart.
struct PageRuns {
  char* first = nullptr;
  int64_t bytes = 0, stride = 0;
  int32_t count = 0;

  int64_t total() const { return bytes * count; }
};
inline PageRuns page_runs(const KvGeometry& g, const HostView& v, HostSlot slot) {
  char* first = v.base + int64_t{slot.value} * v.slot_stride;
  if (v.layout == HostLayout::kLayerFirst)
    return {first, g.piece_bytes(), v.layer_stride, g.layers};
  return {first, g.page_bytes(), g.page_bytes(), 1};
}

// One page's copy between the pools.
struct PageCopy {
  HostSlot host;
  DeviceSlot device;
  bool operator==(const PageCopy&) const = default;
};

}  // namespace attune::kv
