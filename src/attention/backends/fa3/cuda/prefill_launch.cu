#include <cuda_runtime.h>

#include "attention/backends/fa3/cuda/prefill.cuh"
#include "attention/backends/fa3/cuda/prefill_maps.h"
#include "attention/backends/fa3/cuda/prefill_plan.cuh"
#include "attention/backends/fa3/prefill_launches.h"

namespace attune::attention::fa3 {
namespace {

template <int kQkDim, int kVDim, bool kGather>
void launch(device::Stream& stream, const PrefillCall& call) {
  constexpr int kShared = kPrefillShared<kQkDim, kVDim>;
  const auto kernel = prefill_kernel<kQkDim, kVDim, kGather>;
  const PrefillParams& p = call.params;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kShared);  // a failure is the launch's
  device::launch_kernel(
      stream, "fa3_prefill",
      {.grid = static_cast<uint32_t>(call.ctas), .block = kPrefillThreads, .shared_bytes = kShared},
      {{"tokens", call.tokens},
       {"heads", p.q_heads},
       {"group", p.group},
       {"dim", kQkDim},
       {"page", p.page_size},
       {"window", p.window}},
      kernel,
      query_map(call.q, call.tokens, p.q_heads, kQkDim, call.q_stride, p.tile_heads, p.tile_tokens),
      piece_map(call.kv, Which::kKeys, p.box_rows), piece_map(call.kv, Which::kValues, p.box_rows),
      p);
}

using Launch = void (*)(device::Stream&, const PrefillCall&);
Launch launch_of(int32_t qk_dim, int32_t v_dim, bool gather) {
  if (qk_dim == 64 && v_dim == 64) return gather ? launch<64, 64, true> : launch<64, 64, false>;
  if (qk_dim == 128 && v_dim == 128)
    return gather ? launch<128, 128, true> : launch<128, 128, false>;
  if (qk_dim == 192 && v_dim == 128 && !gather) return launch<192, 128, false>;  // dense rows
  return nullptr;
}

}  // namespace

void launch_prefill_plan(device::Stream& stream, const PrefillPlanParams& params) {
  device::launch_kernel(stream, "fa3_prefill_plan", {.grid = 1, .block = kPrefillPlanThreads},
                        {{"seqs", params.num_seqs}, {"heads", params.heads}}, prefill_plan_kernel,
                        params);
}

bool has_prefill_kernel(int32_t qk_dim, int32_t v_dim) {
  return launch_of(qk_dim, v_dim, false) != nullptr;
}

void launch_prefill(device::Stream& stream, const PrefillCall& call) {
  const bool gather = call.params.page_slots && call.params.page_size < kPrefillLeastBox;
  launch_of(call.kv.k_dim, call.kv.v_dim, gather)(stream, call);
}

}  // namespace attune::attention::fa3
