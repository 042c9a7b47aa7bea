// In place of cuda/ in a build without CUDA.
#include "device/device.h"
#include "device/trace.h"

namespace attune::device {

Result<std::unique_ptr<Device>> create_cuda_device(int /*index*/,
                                                   const std::string& /*libraries*/) {
  return unsupported(
      "this build has only the CPU: build it where nvcc is (docs/cuda.md), or use --device cpu");
}

Result<std::unique_ptr<Tracer>> create_cuda_tracer(const std::string& /*libraries*/) {
  return unsupported("this build has only the CPU: build it where nvcc is (docs/cuda.md)");
}

}  // namespace attune::device
