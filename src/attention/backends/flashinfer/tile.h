#pragma once

#include <cstdint>

namespace attune::attention::flashinfer {

// Query rows of the largest tile of the kernel with tensor cores. Its sums lie in registers, which
// 128 rows of more than 128 would fill (KernelTraits::IsInvalid of FlashInfer's prefill.cuh).
constexpr int32_t largest_tile(int32_t head_dim) {
  return head_dim > 128 ? 64 : 128;
}

}  // namespace attune::attention::flashinfer
