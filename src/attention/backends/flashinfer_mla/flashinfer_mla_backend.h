// FlashInfer's absorbed attention over paged latents of 512 + 64.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::flashinfer_mla {

Capabilities capabilities();
std::unique_ptr<Backend> create(device::Device& device);
// With the kernel for other GPUs than sm90, which those run too: for tests.
std::unique_ptr<Backend> create_fa2(device::Device& device);

}  // namespace attune::attention::flashinfer_mla
