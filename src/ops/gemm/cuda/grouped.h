// Many products in one launch: a model's heads, or experts whose rows only the device knows.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/gemm/cuda/layout.h"

namespace attune::ops::gemm {

inline constexpr int kMostProblems = 512;  // of a launch: experts of a layer
inline constexpr int kMostListed = 256;    // of a launch, told one by one

// y[m, n] (+)= x[m, k] * w[n, k]^T; x bfloat16. Rows of x and w begin at multiples of 16 bytes.
struct Problem {
  const uint8_t* w;
  const uint8_t* x;
  void* y;
  int64_t ldx, ldy;  // elements
  int32_t m, n;
};

struct ProblemList {
  Problem problems[kMostListed];
  int32_t count;
};

// Expert e has rows [offsets[e], offsets[e + 1]) of x and y, and the weights at w[e].
struct Experts {
  const uint8_t* const* w;  // [count], on the device
  const uint8_t* x;
  void* y;
  int64_t ldx, ldy;
  const int32_t* offsets;  // [count + 1], on the device
  int32_t n, count;
};

struct GroupedParams {
  int32_t k;  // a multiple of 8
  CudaLayout layout;
  bool y_bf16, accumulate;
  int32_t typical_m;  // chooses the tile: a result depends on it in its last bits
};

// Once per device, before the first launch there.
void prepare_grouped();
void grouped(const ProblemList& list, const GroupedParams& p, const device::DeviceInfo& info,
             device::Stream& stream);
void grouped(const Experts& experts, const GroupedParams& p, const device::DeviceInfo& info,
             device::Stream& stream);

}  // namespace attune::ops::gemm
