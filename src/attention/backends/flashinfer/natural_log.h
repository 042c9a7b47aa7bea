#pragma once

#include <cstdint>

#include "device/device.h"

namespace attune::attention::flashinfer {

// In place: from FlashInfer's base-2 LSE, where rows that saw no key have about -5e4, to the
// contract's natural log and minus infinity. lse: [*rows, heads], *rows in device memory and at
// most max_rows. Inside Stream::launch.
void launch_natural_log(device::Stream& stream, float* lse, const int32_t* rows, int32_t max_rows,
                        int32_t heads);

}  // namespace attune::attention::flashinfer
