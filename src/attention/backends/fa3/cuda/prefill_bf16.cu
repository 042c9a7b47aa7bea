#include "attention/backends/fa3/cuda/prefill_launch.cuh"

namespace attune::attention::fa3 {

PrefillLaunch prefill_bf16(int32_t qk_dim, int32_t v_dim, bool gather) {
  using Kv = __nv_bfloat16;
  if (qk_dim == 64 && v_dim == 64)
    return gather ? launch_prefill_kernel<64, 64, Kv, true>
                  : launch_prefill_kernel<64, 64, Kv, false>;
  if (qk_dim == 128 && v_dim == 128)
    return gather ? launch_prefill_kernel<128, 128, Kv, true>
                  : launch_prefill_kernel<128, 128, Kv, false>;
  if (qk_dim == 192 && v_dim == 128 && !gather)
    return launch_prefill_kernel<192, 128, Kv, false>;  // dense rows
  return nullptr;
}

}  // namespace attune::attention::fa3
