#include "attention/backends/cpu/kernel_impl.h"

namespace attune::attention::cpu {

const Kernels& kernels_avx512() {
  static constexpr Kernels kernels = kKernels;
  return kernels;
}

}  // namespace attune::attention::cpu
