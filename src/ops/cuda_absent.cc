// In place of cuda_table.cc in a build without CUDA.
#include "ops/cuda_table.h"
#include "ops/sample/device_sampler.h"

namespace attune::ops {

const OpTable* cuda_ops() {
  return nullptr;
}

Result<std::unique_ptr<DeviceSampler>> create_device_sampler(const DeviceSampler::Config&,
                                                             device::Device&) {
  return unsupported("built without CUDA");
}

}  // namespace attune::ops
