// The prefill kernel's launches behind plain structs. Each belongs inside Stream::launch, and a
// failure is the stream's.
#pragma once

#include <cstdint>

#include "attention/backend.h"
#include "attention/backends/fa3/cuda/prefill_params.h"
#include "device/device.h"

namespace attune::attention::fa3 {

void launch_prefill_plan(device::Stream& stream, const PrefillPlanParams& params);

struct PrefillCall {
  kv::PagedKvView kv;
  const void* q = nullptr;
  int64_t q_stride = 0;  // elements
  int32_t tokens = 0, ctas = 0;
  PrefillParams params;
};
// Whether there is a kernel for caches of a type and heads of these sizes; over e4m3 only for
// pages.
bool has_prefill_kernel(tensor::DType kv_dtype, int32_t qk_dim, int32_t v_dim);
void launch_prefill(device::Stream& stream, const PrefillCall& call);

}  // namespace attune::attention::fa3
