// Rows of embedding tables to float32, of any float or quantised type. Bit-equal to
// formats/dequant.h, the oracle: every product of a block's scale and a quantum is exact in
// float32, so the order of operations does not matter.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace attune::ops::cpu {

// out[0, n) from the row at `row`; n is a multiple of the block size. `out` is multiplied by
// nothing.
void dequant_row(tensor::DType dtype, const void* row, int64_t n, float* out);

}  // namespace attune::ops::cpu
