// In place of cuda/ in a build without CUDA.
#include "device/device.h"

namespace attune::device {

Result<std::unique_ptr<Device>> create_cuda_device(int /*index*/,
                                                   const std::string& /*libraries*/) {
  return unsupported(
      "this build has only the CPU: build it where nvcc is (docs/cuda.md), or use --device cpu");
}

}  // namespace attune::device
