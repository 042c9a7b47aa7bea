#include "ops/gemm/cuda/tensor_map.h"

#include "device/cuda/tensor_map.h"
#include "ops/gemm/cuda/layout.h"

namespace attune::ops::gemm {

CUtensorMap tensor_map(const void* data, int64_t rows, int64_t k, int64_t stride, int box_rows) {
  const int64_t sizes[] = {k, rows}, strides[] = {stride * 2};
  const uint32_t box[] = {kBlockK, static_cast<uint32_t>(box_rows)};
  return device::tensor_map({.data = data, .sizes = sizes, .strides = strides, .box = box});
}

}  // namespace attune::ops::gemm
