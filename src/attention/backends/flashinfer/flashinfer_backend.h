// FlashInfer's paged attention (arXiv:2501.01005) for query, key and value heads of 64 and 128;
// with the full set of kernels also of 256.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::flashinfer {

Capabilities capabilities();
std::unique_ptr<Backend> create(device::Device& device);

}  // namespace attune::attention::flashinfer
