// What is left to do to FlashInfer's results. Inside Stream::launch; *rows, in device memory, is at
// most max_rows.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace attune::attention::flashinfer {

// In place: from FlashInfer's base-2 LSE, where rows that saw no key have about -5e4, to the
// contract's natural log and minus infinity. lse: [*rows, heads].
void launch_natural_log(device::Stream& stream, float* lse, const int32_t* rows, int32_t max_rows,
                        int32_t heads);

// Dense rows of `width` 2-byte elements, a multiple of 8, to rows that lie `stride` apart.
void launch_spread_rows(device::Stream& stream, const void* from, void* to, const int32_t* rows,
                        int32_t max_rows, int64_t width, int64_t stride);

}  // namespace attune::attention::flashinfer
