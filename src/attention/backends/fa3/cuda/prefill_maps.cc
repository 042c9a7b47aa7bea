#include "attention/backends/fa3/cuda/prefill_maps.h"

#include "device/cuda/tensor_map.h"

namespace attune::attention::fa3 {
namespace {

constexpr uint32_t kPieceDims = 64;

CUtensorMap pieces(const void* data, std::span<const int64_t> sizes,
                   std::span<const int64_t> strides, std::span<const uint32_t> box) {
  return device::tensor_map({.data = data,
                             .sizes = sizes,
                             .strides = strides,
                             .box = box,
                             .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
}

}  // namespace

CUtensorMap query_map(const void* q, int rows, int q_heads, int dim, int64_t token_stride,
                      int heads, int tokens) {
  const int64_t sizes[] = {dim, q_heads, rows}, strides[] = {int64_t{dim} * 2, token_stride * 2};
  const uint32_t box[] = {kPieceDims, static_cast<uint32_t>(heads), static_cast<uint32_t>(tokens)};
  return pieces(q, sizes, strides, box);
}

CUtensorMap piece_map(const kv::PagedKvView& kv, KvSide side, int rows) {
  const bool keys = side == KvSide::kKeys;
  const int64_t sizes[] = {keys ? kv.k_dim : kv.v_dim, kv.page_size, kv.kv_heads, kv.num_slots};
  const int64_t strides[] = {keys ? kv.k_token_stride : kv.v_token_stride,
                             keys ? kv.k_head_stride : kv.v_head_stride, kv.page_stride};
  const uint32_t box[] = {kPieceDims, static_cast<uint32_t>(rows), 1, 1};
  return pieces(static_cast<const char*>(kv.base) + (keys ? 0 : kv.v_offset), sizes, strides, box);
}

}  // namespace attune::attention::fa3
