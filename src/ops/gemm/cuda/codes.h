// Products of few rows of x and a weight of codes.
#pragma once

#include "ops/gemm/cuda/gemv.h"

namespace attune::ops::gemm {

// Once per device of sm_90, before the first launch there.
void prepare_codes();
// False, and nothing is launched, where x has too many rows or needs too much shared memory, or the
// layout has no codes. sm_90 and later.
bool multiply_codes(const GemvParams& p, CudaLayout layout, const device::DeviceInfo& info,
                    device::Stream& stream);

}  // namespace attune::ops::gemm
