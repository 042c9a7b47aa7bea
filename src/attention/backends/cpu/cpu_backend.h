// Vectorised attention for CPUs: AVX2 or AVX-512 kernels, chosen when it is created.
// Batch-invariant (kernel.h says how), whether heads are packed or not, unless num_splits is above
// 1: parts of a fixed number, of whole blocks of 64 keys each, end at places that move with the
// sequence's length.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::cpu {

Capabilities capabilities();
std::unique_ptr<Backend> create(device::CpuIsa isa);

}  // namespace attune::attention::cpu
