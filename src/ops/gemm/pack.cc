#include "ops/gemm/gemm.h"

namespace attune::ops {

Result<PackedWeight> pack_weight(const std::vector<tensor::TensorView>& parts, tensor::DType act,
                                 device::Device& device, device::Stream& stream) {
  return device.info().kind == device::Kind::kCuda ? cuda::pack_weight(parts, act, device, stream)
                                                   : cpu::pack_weight(parts, act, device, stream);
}

}  // namespace attune::ops
