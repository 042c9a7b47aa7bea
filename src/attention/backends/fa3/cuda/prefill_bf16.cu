#include "attention/backends/fa3/cuda/prefill_launch.cuh"

namespace attune::attention::fa3 {

PrefillLaunch prefill_bf16(int32_t qk_dim, int32_t v_dim, bool gather) {
  if (qk_dim == 192 && v_dim == 128 && !gather)
    return launch_prefill_kernel<192, 128, __nv_bfloat16, false>;  // dense rows
  return square_prefill<__nv_bfloat16>(qk_dim, v_dim, gather);
}

}  // namespace attune::attention::fa3
