// What FlashInfer's kernels leave to be done before and after them. Inside Stream::launch; *rows,
// in device memory, is at most max_rows.
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

// Rows of `width` bfloat16 elements, a multiple of 8, that lie `stride` apart, to dense float16, in
// which what is too large becomes the largest finite. Rows begin at multiples of 16 bytes.
void launch_to_float16(device::Stream& stream, const void* from, int64_t stride, void* to,
                       const int32_t* rows, int32_t max_rows, int64_t width);

}  // namespace attune::attention::flashinfer
