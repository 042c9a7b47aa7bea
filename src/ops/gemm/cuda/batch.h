// Products of a decode batch's rows on Hopper: more rows than gemv takes, few enough that reading
// the weight decides the time.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace attune::ops::gemm {

inline constexpr int kBatchRows = 128;  // the most rows of x

struct BatchParams {
  const void* w;    // bfloat16 [n, k], aligned to 16 bytes
  int32_t n, k, m;  // k a multiple of 8; m in [1, kBatchRows]
  const void* x;    // bfloat16 [m, k], aligned to 16 bytes, row stride ldx
  int64_t ldx;      // elements, a multiple of 8
  void* y;          // float32 or bfloat16 [m, n], row stride ldy
  int64_t ldy;      // elements
  bool y_bf16;
  bool accumulate;        // float32 alone
  bool w_is_new = false;  // the kernel before writes w, which is then not read ahead of its end
};

// What decides the time only.
struct BatchTuning {
  int32_t cluster = 1;  // CTAs that share a tile along k: 1, 2, 4 or 8
  bool spread = false;  // each cluster begins elsewhere in k
};

// How many clusters of 1, 2, 4 and 8 CTAs run at a time; none: the kernels cannot run.
struct BatchRoom {
  int32_t clusters[4] = {};
  explicit operator bool() const { return clusters[0] > 0; }
};
// Readies the kernels. Once per device.
BatchRoom prepare_batch(const device::DeviceInfo& info);
// False, and nothing launched: the product cannot be parted so.
bool batch_linear(const BatchParams& p, const BatchTuning& tuning, const BatchRoom& room,
                  device::Stream& stream);

}  // namespace attune::ops::gemm
