// Plain reference conversion of every stored type to float32: the oracle of the fast kernels in
// src/ops. Block layouts and formulas: ggml's quantisation formats; results are bit-equal to the
// gguf package's.
#pragma once

#include <cstdint>
#include <span>

#include "attune/status.h"
#include "tensor/tensor_view.h"

namespace attune::formats {

// Converts out.size() consecutive elements at `data` (unaligned is fine).
// Errors: invalid_argument when out.size() is no multiple of the block size; unsupported for bool.
Status dequantize(tensor::DType dtype, const void* data, std::span<float> out);

}  // namespace attune::formats
