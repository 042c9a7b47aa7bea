// Kernels of the soak (hicache_soak_gpu_test.cc).
#pragma once

#include <cstdint>

#include "device/device.h"

namespace attune::soak {

// *differ += the number of words in which a and b differ. Inside Stream::launch, as are the others.
void count_differences(device::Stream& stream, const uint32_t* a, const uint32_t* b, int64_t words,
                       uint64_t* differ);

// The planted fault, made as the public one was: a first kernel writes what a second one reads, the
// second is launched with programmatic dependent launch, and does not wait. `metadata` is `words`
// words, wild before; out[i] = metadata[i] = f(seed, lengths[i % count], i).
void run_without_wait(device::Stream& stream, const int32_t* lengths, int32_t count, uint32_t seed,
                      uint32_t* metadata, uint32_t* out, int64_t words);

}  // namespace attune::soak
