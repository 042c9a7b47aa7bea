// Products of few rows: every weight is read once, near the memory's rate.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/gemm/cuda/layout.h"

namespace attune::ops::gemm {

inline constexpr int kGemvRows = 16;  // the most rows of x

struct GemvParams {
  const uint8_t* w;
  int32_t n, k, m;    // m in [1, kGemvRows]; k a multiple of 8
  const void* x;      // bfloat16 [m, k], row stride ldx
  int64_t ldx;        // elements
  const float* bias;  // [n] or null
  void* y;            // float32 or bfloat16 [m, n], row stride ldy
  int64_t ldy;        // elements
  bool y_bf16, accumulate;
};

// What decides the time only; zero: chosen from the shape.
struct GemvTuning {
  int32_t shared_bytes = 0;  // the most that a CTA takes
  int32_t stages = 0;        // the most stages of its ring
  int32_t ctas_per_sm = 0;
};

// Once per device, before the first gemv there. False: the driver is too old for it.
bool prepare_gemv(const device::DeviceInfo& info);
void gemv(const GemvParams& p, CudaLayout layout, const device::DeviceInfo& info,
          device::Stream& stream, const GemvTuning& tuning = {});

}  // namespace attune::ops::gemm
