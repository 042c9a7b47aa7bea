// cuDNN's fused attention over paged caches, through its frontend's graphs.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::cudnn {

Capabilities capabilities();
std::unique_ptr<Backend> create(device::Device& device);

}  // namespace attune::attention::cudnn
