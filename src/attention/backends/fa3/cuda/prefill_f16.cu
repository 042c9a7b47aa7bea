#include "attention/backends/fa3/cuda/prefill_launch.cuh"

namespace attune::attention::fa3 {

PrefillLaunch prefill_f16(int32_t qk_dim, int32_t v_dim, bool gather) {
  if (qk_dim == 64 && v_dim == 64)
    return gather ? launch_prefill_kernel<64, 64, __half, true>
                  : launch_prefill_kernel<64, 64, __half, false>;
  if (qk_dim == 128 && v_dim == 128)
    return gather ? launch_prefill_kernel<128, 128, __half, true>
                  : launch_prefill_kernel<128, 128, __half, false>;
  return nullptr;
}

}  // namespace attune::attention::fa3
