// In place of cuda_table.cc and the folders cuda/ in a build without CUDA.
#include "ops/cuda_table.h"
#include "ops/gemm/gemm.h"
#include "ops/read/reader.h"
#include "ops/sample/device_sampler.h"

namespace attune::ops {

const OpTable* cuda_ops() {
  return nullptr;
}

Reader cuda_reader() {
  return nullptr;
}

Result<std::unique_ptr<DeviceSampler>> create_device_sampler(const DeviceSampler::Config&,
                                                             device::Device&) {
  return unsupported("built without CUDA");
}

Result<PackedWeight> cuda::pack_weight(const std::vector<tensor::TensorView>& /*parts*/,
                                       tensor::DType /*act*/, device::Device& /*device*/,
                                       device::Stream& /*stream*/) {
  return unsupported("pack_weight: this build has no CUDA");
}

}  // namespace attune::ops
