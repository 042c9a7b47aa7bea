// Vectorised attention for CPUs: AVX2 or AVX-512 kernels, chosen when it is created. Always
// batch-invariant (kernel.h says how).
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::cpu {

Capabilities capabilities();
std::unique_ptr<Backend> create(device::CpuIsa isa);

}  // namespace attune::attention::cpu
