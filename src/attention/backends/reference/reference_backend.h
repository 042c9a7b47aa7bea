// The oracle: every feature, in plain C++ with double accumulation, straight from the definition.
#pragma once

#include <memory>

#include "attention/backend.h"

namespace attune::attention::reference {

Capabilities capabilities();
std::unique_ptr<Backend> create();

}  // namespace attune::attention::reference
