#include "attention/backends/fa3/cuda/prefill_launch.cuh"

namespace attune::attention::fa3 {

PrefillLaunch prefill_fp8(int32_t qk_dim, int32_t v_dim) {
  using Kv = __nv_fp8_e4m3;
  if (qk_dim == 64 && v_dim == 64) return launch_prefill_kernel<64, 64, Kv, false>;
  if (qk_dim == 128 && v_dim == 128) return launch_prefill_kernel<128, 128, Kv, false>;
  return nullptr;
}

}  // namespace attune::attention::fa3
