// Launches of the prefill kernel, for the units that each have those over caches of one type.
#pragma once

#include <cuda_runtime.h>

#include "attention/backends/fa3/cuda/prefill.cuh"
#include "attention/backends/fa3/cuda/prefill_maps.h"
#include "attention/backends/fa3/prefill_launches.h"

namespace attune::attention::fa3 {

template <int kQkDim, int kVDim, typename Kv, bool kGather>
void launch_prefill_kernel(device::Stream& stream, const PrefillCall& call) {
  constexpr int kShared = kPrefillShared<kQkDim, kVDim, Kv>;
  static_assert(kShared <= device::kMostSharedBytes);
  const auto kernel = prefill_kernel<kQkDim, kVDim, Kv, kGather>;
  const PrefillParams& p = call.params;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kShared);  // a failure is the launch's
  CUtensorMap k{}, v{};
  if (!PrefillShape<kQkDim, kVDim, Kv>::kF8) {
    k = piece_map(call.kv, KvSide::kKeys, p.box_rows);
    v = piece_map(call.kv, KvSide::kValues, p.box_rows);
  }
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
      k, v, p);
}

// null: there is no such kernel. gather: pages below kLeastBox tokens.
using PrefillLaunch = void (*)(device::Stream&, const PrefillCall&);
// Of caches of 16 bits whose keys and values are of a size.
template <typename Kv>
PrefillLaunch square_prefill(int32_t qk_dim, int32_t v_dim, bool gather) {
  if (qk_dim == 64 && v_dim == 64)
    return gather ? launch_prefill_kernel<64, 64, Kv, true>
                  : launch_prefill_kernel<64, 64, Kv, false>;
  if (qk_dim == 128 && v_dim == 128)
    return gather ? launch_prefill_kernel<128, 128, Kv, true>
                  : launch_prefill_kernel<128, 128, Kv, false>;
  return nullptr;
}

PrefillLaunch prefill_bf16(int32_t qk_dim, int32_t v_dim, bool gather);
PrefillLaunch prefill_f16(int32_t qk_dim, int32_t v_dim, bool gather);
PrefillLaunch prefill_fp8(int32_t qk_dim, int32_t v_dim);

}  // namespace attune::attention::fa3
