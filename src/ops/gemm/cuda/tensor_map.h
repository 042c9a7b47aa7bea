// What the copy engine knows of a matrix that boxes are copied from.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace attune::ops::gemm {

// Of bfloat16 [rows, k], rows `stride` elements apart: boxes of 64 k by box_rows rows (at most
// 256), in which the 16-byte pieces of a row are exchanged by its number (a swizzle of 128 bytes).
// What lies past an edge arrives as zeros. REQUIRES: has_tensor_maps(); `data` and the stride in
// bytes are multiples of 16.
CUtensorMap tensor_map(const void* data, int64_t rows, int64_t k, int64_t stride, int box_rows);

}  // namespace attune::ops::gemm
