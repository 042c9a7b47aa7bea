// A weight the other way round, for loading.
#pragma once

#include <cstddef>
#include <memory>

#include "attune/status.h"
#include "tensor/tensor_view.h"

namespace attune::model {

struct Transposed {
  std::unique_ptr<std::byte[]> memory;
  tensor::TensorView view;  // into it
};

// [n, k] becomes [k, n]: of the same type for floats of 2 and 4 bytes, else as float32. Errors:
// formats::dequantize's.
Result<Transposed> transpose(const tensor::TensorView& view);

}  // namespace attune::model
