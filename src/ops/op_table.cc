#include "base/check.h"
#include "ops/cuda_table.h"
#include "ops/ops.h"

namespace attune::ops {

const OpTable& op_table(const device::DeviceInfo& info) {
  if (info.kind == device::Kind::kCpu) return cpu_ops(info.isa);
  const OpTable* table = cuda_ops();
  ATTUNE_CHECK(table != nullptr);  // such a device comes from a build that has it
  return *table;
}

}  // namespace attune::ops
