// The oracle: every feature, in plain C++ with double accumulation, straight from the definition;
// on a GPU the same as one plain kernel with float32 sums.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::reference {

Capabilities capabilities();
std::unique_ptr<Backend> create(device::Kind kind);

}  // namespace attune::attention::reference
