// What a layer stores per page, and how a kernel finds it. K and V of one page and layer lie
// together: a *piece*, the unit of every copy between tiers.
#pragma once

#include <cstdint>

#include "base/strong_id.h"
#include "tensor/dtype.h"

namespace attune::kv {

// A page's identity in the engine, whatever tiers it lies in.
using PageId = base::StrongId<struct PageIdTag>;
// A physical place in the device pool. Slot 0 is reserved: padding rows point at it, no request
// owns it.
using DeviceSlot = base::StrongId<struct DeviceSlotTag>;
inline constexpr DeviceSlot kPaddingSlot{0};

// Order inside K (and inside V) of one page.
enum class PageOrder : uint8_t {
  kHeadMajor /* [heads, page_size, dim], HND */,
  kTokenMajor /* NHD */
};

// One layer's attention state per token. MLA (DeepSeek-V2, arXiv:2405.04434) stores one row of
// latent and rope part: kv_heads 1, k_dim 512 + 64, and V is the first v_dim = 512 elements of K.
struct LayerKvSpec {
  int32_t kv_heads = 0;
  int32_t k_dim = 0, v_dim = 0;
  tensor::DType dtype = tensor::DType::kF32;
  bool v_in_k = false;  // V is the head of each K row; nothing is stored for it
};

struct KvGeometry {
  LayerKvSpec layer;  // the same for every layer
  int32_t layers = 0;
  int32_t page_size = 16;  // tokens per page of the pool
  PageOrder order = PageOrder::kHeadMajor;

  int64_t elem_bytes() const { return tensor::dtype_bytes(layer.dtype, 1); }
  int64_t k_bytes() const {
    return int64_t{layer.kv_heads} * page_size * layer.k_dim * elem_bytes();
  }
  int64_t v_bytes() const {
    if (layer.v_in_k) return 0;
    return int64_t{layer.kv_heads} * page_size * layer.v_dim * elem_bytes();
  }
  int64_t piece_bytes() const { return k_bytes() + v_bytes(); }  // one page in one layer
  int64_t page_bytes() const { return piece_bytes() * layers; }  // one page in all layers
};

// One layer of the pool as kernels see it: byte strides, so that any order reads the same.
// K of (slot, head, token) is at base + slot*page_stride + head*k_head_stride +
// token*k_token_stride, V likewise behind v_offset.
struct PagedKvView {
  void* base = nullptr;
  tensor::DType dtype = tensor::DType::kF32;
  int32_t num_slots = 0, page_size = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  int64_t page_stride = 0, v_offset = 0;
  int64_t k_head_stride = 0, k_token_stride = 0, v_head_stride = 0, v_token_stride = 0;
};

inline PagedKvView make_view(const KvGeometry& g, void* layer_base, int32_t num_slots) {
  const int64_t e = g.elem_bytes(), k = g.layer.k_dim * e, v = g.layer.v_dim * e;
  const bool head_major = g.order == PageOrder::kHeadMajor;
  PagedKvView view{layer_base,
                   g.layer.dtype,
                   num_slots,
                   g.page_size,
                   g.layer.kv_heads,
                   g.layer.k_dim,
                   g.layer.v_dim,
                   g.piece_bytes(),
                   g.k_bytes(),
                   0,
                   0,
                   0,
                   0};
  view.k_head_stride = head_major ? k * g.page_size : k;
  view.k_token_stride = head_major ? k : k * g.layer.kv_heads;
  view.v_head_stride = head_major ? v * g.page_size : v;
  view.v_token_stride = head_major ? v : v * g.layer.kv_heads;
  if (g.layer.v_in_k) {
    view.v_offset = 0;
    view.v_head_stride = view.k_head_stride;
    view.v_token_stride = view.k_token_stride;
  }
  return view;
}

// Keys and values that lie dense, row by row, as MLA's ragged paths make them: K [rows, heads,
// k_dim] and V [rows, heads, v_dim], in one allocation. All of it reads as one page, slot 0.
inline PagedKvView make_ragged_view(void* k, void* v, tensor::DType dtype, int32_t rows,
                                    int32_t heads, int32_t k_dim, int32_t v_dim) {
  const int64_t e = tensor::dtype_bytes(dtype, 1);
  return {.base = k,
          .dtype = dtype,
          .num_slots = 1,
          .page_size = rows,
          .kv_heads = heads,
          .k_dim = k_dim,
          .v_dim = v_dim,
          .page_stride = 0,
          .v_offset = static_cast<char*>(v) - static_cast<char*>(k),
          .k_head_stride = k_dim * e,
          .k_token_stride = heads * k_dim * e,
          .v_head_stride = v_dim * e,
          .v_token_stride = heads * v_dim * e};
}

}  // namespace attune::kv
