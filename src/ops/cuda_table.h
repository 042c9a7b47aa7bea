// The CUDA table, where this build has it.
#pragma once

#include "ops/ops.h"

namespace attune::ops {

const OpTable* cuda_ops();  // null: built without CUDA

}  // namespace attune::ops
