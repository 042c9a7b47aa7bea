#include "ops/gemm/cuda/tensor_map.h"

#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/gemm/cuda/layout.h"

namespace attune::ops::gemm {
namespace {

// Of the driver, which the runtime opens. Null where it has none.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &result) != cudaSuccess)
      function = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return found;
}

}  // namespace

bool has_tensor_maps() {
  return encoder() != nullptr;
}

CUtensorMap tensor_map(const void* data, int64_t rows, int64_t k, int64_t stride, int box_rows) {
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[] = {kBlockK, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const CUresult made =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  ATTUNE_CHECK(made == CUDA_SUCCESS);
  return map;
}

}  // namespace attune::ops::gemm
