// This machine's memory.
#pragma once

#include <cstdint>

namespace attune::device {

// Bytes, now, and within the limits of the process's control group. 0: unknown.
struct HostMemory {
  int64_t total = 0;
  int64_t available = 0;  // without pushing anybody to swap: MemAvailable
};
HostMemory host_memory();

}  // namespace attune::device
