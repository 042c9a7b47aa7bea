// Our own Hopper kernels for paged attention: TMA rings, tensor cores, one device plan per step.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::fa3 {

Capabilities capabilities();
std::unique_ptr<Backend> create(device::Device& device);

}  // namespace attune::attention::fa3
