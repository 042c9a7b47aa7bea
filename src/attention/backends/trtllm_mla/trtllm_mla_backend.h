// MLA's up-projected keys and values (192/128), by the wgmma kernel of fa3.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::trtllm_mla {

Capabilities capabilities();
std::unique_ptr<Backend> create(device::Device& device);

}  // namespace attune::attention::trtllm_mla
