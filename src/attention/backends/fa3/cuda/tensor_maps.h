// What the copy engine knows of a pool's keys, or values.
#pragma once

#include <cuda.h>

#include "kv/layout/layout.h"

namespace attune::attention::fa3 {

enum class KvSide { kKeys, kValues };

// Of (dim, token, head, slot): boxes of up to 128 bytes of dims and `rows` tokens of a page,
// swizzled by as many bytes as a row has. REQUIRES: has_tensor_maps(); strides are multiples of 16
// bytes.
CUtensorMap page_map(const kv::PagedKvView& kv, KvSide side, int rows);

}  // namespace attune::attention::fa3
