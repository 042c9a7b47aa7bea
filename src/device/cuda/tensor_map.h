// What the copy engine of a multiprocessor (TMA) knows of a tensor that boxes are copied from;
// sm_90 and later.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

namespace attune::device {

// Whether the driver makes them.
bool has_tensor_maps();

// Dimensions from the fastest on, whose elements lie side by side.
struct TensorMapSpec {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const void* data = nullptr;
  std::span<const int64_t> sizes;    // elements, up to five dimensions
  std::span<const int64_t> strides;  // bytes, of the second dimension on
  std::span<const uint32_t> box;     // elements, at most 256 each
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  // 256 bytes would cost keys and values that lie apart 6 % of their rate.
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE;
};

// What lies past an edge arrives as zeros. REQUIRES: has_tensor_maps(); `data` and the strides are
// multiples of 16 bytes.
CUtensorMap tensor_map(const TensorMapSpec& spec);

}  // namespace attune::device
