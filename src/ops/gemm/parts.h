// What the parts of one weight must be, whatever the device.
#pragma once

#include <cstdint>
#include <vector>

#include "attune/status.h"
#include "base/log.h"
#include "tensor/tensor_view.h"

namespace attune::ops::gemm {

// The rows of all parts, or why they make no weight. `known`: the device has a layout for their
// type.
inline Result<int64_t> rows_of_parts(const std::vector<tensor::TensorView>& parts, bool known,
                                     tensor::DType act) {
  if (parts.empty()) return invalid_argument("pack_weight: no tensor given");
  const tensor::TensorView& head = parts[0];
  if (act != tensor::DType::kF32 && act != tensor::DType::kBF16)
    return invalid_argument(base::cat("pack_weight: activations of type ", tensor::dtype_name(act),
                                      "; use float32 or bfloat16"));
  if (!known)
    return invalid_argument(base::cat("pack_weight: ", tensor::dtype_name(head.dtype),
                                      " is no type of a linear layer's weight"));
  int64_t n = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const tensor::TensorView& part = parts[i];
    if (part.shape.rank != 2 || part.shape[0] < 1 || part.shape[1] < 1)
      return invalid_argument(base::cat("pack_weight: part ", i, " has shape ",
                                        part.shape.to_string(), "; a weight is [outputs, inputs]"));
    if (part.dtype != head.dtype || part.shape[1] != head.shape[1])
      return invalid_argument(
          base::cat("pack_weight: part ", i, " is ", tensor::dtype_name(part.dtype), " ",
                    part.shape.to_string(), ", part 0 is ", tensor::dtype_name(head.dtype), " ",
                    head.shape.to_string(), "; parts of one weight share type and inputs"));
    n += part.shape[0];
  }
  const int64_t k = head.shape[1], block = tensor::dtype_info(head.dtype).block_elems;
  if (k % block != 0)
    return invalid_argument(base::cat("pack_weight: ", k, " inputs are no multiple of ",
                                      tensor::dtype_name(head.dtype), "'s block of ", block));
  return n;
}

}  // namespace attune::ops::gemm
