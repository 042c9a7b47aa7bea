// The small kernels beside the products.
#pragma once

#include "device/device.h"
#include "ops/gemm/cuda/layout.h"
#include "ops/ops.h"

namespace attune::ops::gemm {

// out[rows, k] bfloat16 = the weight's rows first_row .. first_row + rows; first_row a multiple of
// kTileRows.
struct DequantizeParams {
  const uint8_t* w;
  int32_t k;
  int64_t first_row, rows;
  void* out;
};
void dequantize(const DequantizeParams& p, CudaLayout layout, device::Stream& stream);

// y[m, n] += bias[n]; y float32 or bfloat16.
void add_bias(const LinearParams& p, device::Stream& stream);

// The product with float32 weights [n, k], exact but for the order of the sum, which is the same
// for every m.
void linear_f32(const LinearParams& p, device::Stream& stream);

}  // namespace attune::ops::gemm
