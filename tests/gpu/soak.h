// A soak of decode attention beside copies of pages (hicache_soak_gpu_test.cc): the steps, what
// stands around attention in them, what else happens to the memory, and what is counted.
#pragma once

#include <cstdint>
#include <string>

#include "attention/backend.h"
#include "attune/status.h"
#include "bench/attention.h"
#include "device/device.h"
#include "soak_kernels.h"

namespace attune::soak {

struct Shape {
  bench::AttentionHeads heads = {32, 8, 128, 128};
  int32_t seqs = 48, full_pages = 31;  // full pages of a sequence at most
  int32_t page_size = 64, layers = 4, sets = 48;
  int32_t copied_slots = 512, host_slots = 768;  // a third of these is loaded from
  tensor::DType dtype = tensor::DType::kBF16;    // of the cache
  int32_t q_len = 1, window = 0;                 // q_len: at most a page

  int32_t rows() const { return seqs * q_len; }
};

struct Outcome {
  int64_t steps = 0, steps_alone = 0;
  Differences alone, beside;               // from the first run of each step
  double saved = 0, loaded = 0;            // bytes/s
  double step_alone = 0, step_beside = 0;  // seconds, with what the soak does between layers
  uint64_t outputs = 0;                    // a hash of the first outputs of all steps

  // What is wrong, in words; "": nothing. To the bit, unless the backend adds up in another order
  // from run to run by itself.
  std::string verdict() const;
};

// Each step first without copies, then for `seconds` beside them, in a graph. `backend` null: the
// planted fault (run_without_wait). Errors: resource_exhausted; the device's, if a kernel failed;
// data_loss: a page was not saved as it was.
Result<Outcome> run(const Shape& shape, device::Device& device, const attention::Backend* backend,
                    bool pdl, double seconds);

}  // namespace attune::soak
