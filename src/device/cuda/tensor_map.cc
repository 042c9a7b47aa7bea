#include "device/cuda/tensor_map.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"

namespace attune::device {
namespace {

constexpr size_t kMostDims = 5;

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

CUtensorMap tensor_map(const TensorMapSpec& s) {
  const size_t dims = s.sizes.size();
  ATTUNE_CHECK(dims > 0 && dims <= kMostDims && s.strides.size() == dims - 1 &&
               s.box.size() == dims);
  cuuint64_t sizes[kMostDims], strides[kMostDims];
  cuuint32_t steps[kMostDims];
  std::copy(s.sizes.begin(), s.sizes.end(), sizes);
  // A dimension of one element may have any stride, the driver wants one of 16 at least.
  std::transform(s.strides.begin(), s.strides.end(), strides, [](int64_t bytes) {
    return static_cast<cuuint64_t>(std::max<int64_t>(bytes, 16));
  });
  std::fill_n(steps, dims, 1);
  CUtensorMap map{};
  const CUresult made =
      encoder()(&map, s.type, static_cast<cuuint32_t>(dims), const_cast<void*>(s.data), sizes,
                strides, s.box.data(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE, s.swizzle, s.promotion,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  ATTUNE_CHECK(made == CUDA_SUCCESS);
  return map;
}

}  // namespace attune::device
