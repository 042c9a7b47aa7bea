// The backend fa3, built without the waits of dependent launch (CMakeLists.txt).
#pragma once

#include "attention/registry.h"

namespace attune::attention {

BackendEntry fa3_without_waits_backend();

}  // namespace attune::attention
