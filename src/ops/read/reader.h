// The neighbour that copies are measured beside: a kernel that reads device memory at the full rate
// with less than half of each multiprocessor's shared memory, and takes its work tile by tile, so
// that a multiprocessor which is held up does not hold up the rest.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace attune::ops {

struct ReaderParams {
  const void* data;
  int64_t bytes;   // a multiple of 16384
  uint32_t* next;  // the device's, 0 before the launch
};

// Inside Stream::launch; sm_90 on. Null: not in this build.
using Reader = void (*)(const ReaderParams&, device::Stream&);
Reader cuda_reader();

}  // namespace attune::ops
