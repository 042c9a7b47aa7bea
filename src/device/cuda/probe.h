// What has to be there before the device is.
#pragma once

#include <string>

#include "attune/status.h"

namespace attune::device {

// The driver's library; cudart opens it by this name.
inline constexpr const char* kDriverLibrary = "libcuda.so.1";
// ok, or unsupported: "no NVIDIA driver: libcuda.so.1 not found (...)".
Status check_driver(const std::string& library);
// `sm`: 90 for Hopper; `built`: "80,90a", what ATTUNE_CUDA_ARCHS named. Code for "90a" runs on 9.0
// alone, for "80" on 8.x and, compiled again by the driver, on what comes after.
Status check_arch(int sm, const std::string& gpu, const std::string& built);

}  // namespace attune::device
