// Products of a decode batch's rows on Hopper: more rows than gemv takes, few enough that reading
// the weight decides the time.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/gemm/cuda/gemv.h"

namespace attune::ops::gemm {

inline constexpr int kBatchRows = 128;  // the most rows of x

// As GemvParams, but m in [1, kBatchRows], weights bfloat16, k a multiple of 8, x aligned to 16
// bytes with ldx a multiple of 8.
using BatchParams = GemvParams;

// What decides the time only; zero: chosen from the shape.
struct BatchTuning {
  int32_t cluster = 0;  // CTAs that share a tile along k: 1, 2, 4 or 8
};

// Whether the device has what the kernels need, and readies them there. Once per device.
bool prepare_batch(const device::DeviceInfo& info);
void batch_linear(const BatchParams& p, const device::DeviceInfo& info, device::Stream& stream,
                  const BatchTuning& tuning = {});

}  // namespace attune::ops::gemm
