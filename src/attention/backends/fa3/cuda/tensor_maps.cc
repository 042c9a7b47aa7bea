#include "attention/backends/fa3/cuda/tensor_maps.h"

#include <algorithm>

#include "attention/backends/fa3/launches.h"
#include "device/cuda/tensor_map.h"

namespace attune::attention::fa3 {
namespace {

using tensor::DType;

CUtensorMapDataType type_of(DType dtype) {
  if (dtype == DType::kBF16) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (dtype == DType::kF16) return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

bool has_tensor_maps() {
  return device::has_tensor_maps();
}

CUtensorMap page_map(const kv::PagedKvView& kv, KvSide side, int rows) {
  const bool keys = side == KvSide::kKeys;
  const auto bytes = static_cast<int32_t>(tensor::dtype_bytes(kv.dtype, 1));
  const int32_t dim = keys ? kv.k_dim : kv.v_dim, row_bytes = std::min(128, dim * bytes);
  const int32_t columns = row_bytes / bytes;
  const int64_t sizes[] = {columns, kv.page_size, dim / columns, kv.kv_heads, kv.num_slots};
  const int64_t strides[] = {keys ? kv.k_token_stride : kv.v_token_stride, 128,
                             keys ? kv.k_head_stride : kv.v_head_stride, kv.page_stride};
  const auto count = [](int32_t n) { return static_cast<uint32_t>(n); };
  const uint32_t box[] = {count(columns), count(rows), count(dim / columns), 1, 1};
  return device::tensor_map(
      {.type = type_of(kv.dtype),
       .data = static_cast<const char*>(kv.base) + (keys ? 0 : kv.v_offset),
       .sizes = sizes,
       .strides = strides,
       .box = box,
       .swizzle = row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
       .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
}

}  // namespace attune::attention::fa3
