// In place of cuda_table.cc in a build without CUDA.
#include "ops/cuda_table.h"

namespace attune::ops {

const OpTable* cuda_ops() {
  return nullptr;
}

}  // namespace attune::ops
