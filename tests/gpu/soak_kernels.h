// Kernels of the soak (hicache_soak_gpu_test.cc).
#pragma once

#include <cstdint>

#include "device/device.h"

namespace attune::soak {

struct Differences {
  uint64_t words = 0;  // not bit for bit the same
  uint64_t far = 0;    // of these, by more than roundings of bf16 in another order explain, or NaN
};
// Adds those between a and b, words of two bf16 each. Inside Stream::launch, as is the other.
void count_differences(device::Stream& stream, const uint32_t* a, const uint32_t* b, int64_t words,
                       Differences* differences);

// The planted fault, made as the public one was: a first kernel writes what a second one reads, the
// second is launched with programmatic dependent launch, and does not wait. `metadata` is `words`
// words, wild before; out[i] = metadata[i] = f(seed, lengths[i % count], i).
void run_without_wait(device::Stream& stream, const int32_t* lengths, int32_t count, uint32_t seed,
                      uint32_t* metadata, uint32_t* out, int64_t words);

}  // namespace attune::soak
