// MLA's up-projected keys and values (192/128), by the Hopper kernel of prompts (fa3::Prefill).
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::trtllm_mla {

Capabilities capabilities();
std::unique_ptr<Backend> create(device::Device& device);

}  // namespace attune::attention::trtllm_mla
