// Kernels for the tests of the device, and proof that each architecture's code is built.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace attune::device::testing {

// to[i] = value + i for i < n. Call from inside Stream::launch.
void launch_iota(Stream& stream, uint32_t* to, uint32_t value, int64_t n);
// to[i] = from[i] + *add.
void launch_add(Stream& stream, uint32_t* to, const uint32_t* from, const uint32_t* add, int64_t n);
// Ends when *flag, in pinned memory, is not 0; after ten seconds it gives up, so that no test
// hangs.
void launch_until(Stream& stream, const uint32_t* flag);
// Writes to an address that nothing has: the device is lost to the process.
void launch_wild_write(Stream& stream, uint32_t* address, uint32_t value);
// More threads than a block can have.
void launch_impossible(Stream& stream);

}  // namespace attune::device::testing
