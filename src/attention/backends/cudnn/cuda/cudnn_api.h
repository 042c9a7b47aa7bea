// cuDNN's C API as the frontend's headers call it, forwarded to the library that was opened: half a
// gigabyte that is neither linked nor shipped (docs/cuda.md).
#pragma once

#include <string>

#include "attune/status.h"

namespace attune::attention::cudnn {

// Opens cuDNN 9 once for the process and keeps it. `libraries`: DeviceInfo::libraries, of the first
// call. Not found, too old, or without a function that is called: says so at every call.
const Status& open_cudnn(const std::string& libraries);

}  // namespace attune::attention::cudnn
