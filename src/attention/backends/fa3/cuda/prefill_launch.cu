#include "attention/backends/fa3/cuda/prefill_launch.cuh"

#include "attention/backends/fa3/cuda/prefill_plan.cuh"

namespace attune::attention::fa3 {
namespace {

using tensor::DType;

PrefillLaunch launch_of(DType kv_dtype, int32_t qk_dim, int32_t v_dim, bool gather) {
  switch (kv_dtype) {
    case DType::kBF16:
      return prefill_bf16(qk_dim, v_dim, gather);
    case DType::kF16:
      return prefill_f16(qk_dim, v_dim, gather);
    case DType::kF8E4M3:
      return prefill_fp8(qk_dim, v_dim);
    default:
      return nullptr;
  }
}

}  // namespace

void launch_prefill_plan(device::Stream& stream, const PrefillPlanParams& params) {
  device::launch_kernel(stream, "fa3_prefill_plan", {.grid = 1, .block = kPrefillPlanThreads},
                        {{"seqs", params.num_seqs}, {"heads", params.heads}}, prefill_plan_kernel,
                        params);
}

bool has_prefill_kernel(DType kv_dtype, int32_t qk_dim, int32_t v_dim) {
  return launch_of(kv_dtype, qk_dim, v_dim, false) != nullptr;
}

void launch_prefill(device::Stream& stream, const PrefillCall& call) {
  const bool gather = call.params.page_slots && call.params.page_size < kLeastBox;
  launch_of(call.kv.dtype, call.kv.k_dim, call.kv.v_dim, gather)(stream, call);
}

}  // namespace attune::attention::fa3
