// Weights of linear layers, packed once at load for the device's kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attune/status.h"
#include "device/device.h"
#include "tensor/tensor_view.h"

namespace attune::ops {

namespace gemm {
class CudaContext;  // gemm/cuda/context.h
}

// Opaque to all but the gemm kernels. [n, k] = [outputs, inputs].
struct PackedWeight {
  int32_t n = 0, k = 0;
  tensor::DType source = tensor::DType::kF32;  // what it was in the file
  tensor::DType act = tensor::DType::kF32;     // the activation type it was packed for
  int32_t layout = 0;                          // the gemm kernels' own tag
  device::Buffer data;
  int64_t aux_offset = 0;                   // bytes into data where scales begin, if apart
  std::shared_ptr<gemm::CudaContext> cuda;  // what the products of a GPU share; null on the CPU
  int64_t bytes() const { return data.bytes(); }
};

// Packs the rows of `parts`, one below the other, as one weight (fused qkv, gate and up): all parts
// have the same k and dtype. Any dtype of tensor/dtype.h that is a float or quantised type.
// Quantised weights stay quantised (same values, other order); float ones become the activation
// type or stay 16 bit. Returns when the parts are read; `stream` has the weight from then on.
// Errors: invalid_argument (shapes, types), resource_exhausted.
Result<PackedWeight> pack_weight(const std::vector<tensor::TensorView>& parts, tensor::DType act,
                                 device::Device& device, device::Stream& stream);

// The experts of a layer for `expert_linear`; the weights stay the caller's, and where they are.
struct ExpertWeights {
  std::vector<const PackedWeight*> weights;  // [experts]
  device::Buffer table;                      // on a GPU: where their data lie
};

inline constexpr int64_t kMostGpuExperts = 512;  // of a layer, on a GPU
// Errors: invalid_argument where the weights differ in shape or type; unsupported on a GPU for more
// experts, or activations that are not bfloat16; resource_exhausted.
Result<ExpertWeights> gather_experts(std::vector<const PackedWeight*> weights,
                                     device::Device& device, device::Stream& stream);

// pack_weight for each kind of device; a build without CUDA refuses the second.
namespace cpu {
Result<PackedWeight> pack_weight(const std::vector<tensor::TensorView>& parts, tensor::DType act,
                                 device::Device& device, device::Stream& stream);
}
namespace cuda {
Result<PackedWeight> pack_weight(const std::vector<tensor::TensorView>& parts, tensor::DType act,
                                 device::Device& device, device::Stream& stream);
}

}  // namespace attune::ops
