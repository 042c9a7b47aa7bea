// Products of a decode batch's rows on Hopper: more rows than gemv takes, few enough that reading
// the weight decides the time.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/gemm/cuda/gemv.h"

namespace attune::ops::gemm {

inline constexpr int kBatchRows = 256;  // the most rows of x

// As GemvParams, but m in [1, kBatchRows], k any, weights bfloat16, and x aligned to 16 bytes with
// ldx a multiple of 8.
using BatchParams = GemvParams;

// What decides the time only; zero: chosen from the shape.
struct BatchTuning {
  int32_t tile = 0;          // weight rows of a CTA at a time: 128 or 256
  int32_t shared_bytes = 0;  // the most that a CTA takes
};

// Sums of weight rows that several CTAs share go through it. One launch at a time.
int64_t batch_workspace_bytes(const device::DeviceInfo& info);
// Whether the device has what the kernels need, and readies them there. Once per device.
bool prepare_batch(const device::DeviceInfo& info);
// `workspace` of batch_workspace_bytes was zero before the first launch and is left to this.
void batch_linear(const BatchParams& p, void* workspace, const device::DeviceInfo& info,
                  device::Stream& stream, const BatchTuning& tuning = {});

}  // namespace attune::ops::gemm
