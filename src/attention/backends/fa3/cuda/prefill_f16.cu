#include "attention/backends/fa3/cuda/prefill_launch.cuh"

namespace attune::attention::fa3 {

PrefillLaunch prefill_f16(int32_t qk_dim, int32_t v_dim, bool gather) {
  return square_prefill<__half>(qk_dim, v_dim, gather);
}

}  // namespace attune::attention::fa3
