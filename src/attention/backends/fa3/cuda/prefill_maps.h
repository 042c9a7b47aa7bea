// What the copy engine knows of prefill's queries, keys and values.
#pragma once

#include <cuda.h>

#include "attention/backends/fa3/cuda/tensor_maps.h"
#include "kv/layout/layout.h"

namespace attune::attention::fa3 {

// Pieces of 64 dims of 16 bits, swizzled by 128 bytes. REQUIRES: has_tensor_maps(); strides are
// multiples of 16 bytes.

// Of (dim, head, token), boxes of `heads` by `tokens`; token_stride in elements.
CUtensorMap query_map(const void* q, int rows, int q_heads, int dim, int64_t token_stride,
                      int heads, int tokens);
// Of (dim, token, head, slot), boxes of `rows` tokens.
CUtensorMap piece_map(const kv::PagedKvView& kv, KvSide side, int rows);

}  // namespace attune::attention::fa3
