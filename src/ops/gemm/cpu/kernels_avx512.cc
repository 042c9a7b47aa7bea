#include "ops/gemm/cpu/float_kernels.h"

namespace attune::ops::gemm {

const Kernels& avx512_kernels(Layout layout) {
  return float_kernels(layout);
}

}  // namespace attune::ops::gemm
