// For the benchmark: what the memory gives when it is only read.
#pragma once

#include "device/device.h"

namespace attune::ops::gemm::testing {

// Reads `bytes` (a multiple of 16 KiB) into shared memory by bulk copies. sm_90.
void bulk_read(const void* from, int64_t bytes, const device::DeviceInfo& info,
               device::Stream& stream);

}  // namespace attune::ops::gemm::testing
