#include "ops/cpu_kernels.h"

namespace attune::ops {

const OpTable& cpu_ops(device::CpuIsa isa) {
  (void)isa;  // the small ops serve every level
  static constexpr OpTable table{
      .embed = cpu::embed,
      .rms_norm = cpu::rms_norm,
      .rope_table = cpu::rope_table,
      .rope_append = cpu::rope_append,
      .silu_mul = cpu::silu_mul,
      .linear = nullptr,
      .gather_rows = cpu::gather_rows,
  };
  return table;
}

}  // namespace attune::ops
