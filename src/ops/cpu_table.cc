#include "ops/cpu_kernels.h"
#include "ops/gemm/cpu/linear.h"

namespace attune::ops {
namespace {

// The small ops serve every level; the products have a kernel per level.
constexpr OpTable table(void (*linear)(const LinearParams&, Stream&)) {
  return {
      .embed = cpu::embed,
      .rms_norm = cpu::rms_norm,
      .rope_table = cpu::rope_table,
      .rope_append = cpu::rope_append,
      .silu_mul = cpu::silu_mul,
      .linear = linear,
      .gather_rows = cpu::gather_rows,
  };
}

}  // namespace

const OpTable& cpu_ops(device::CpuIsa isa) {
  static constexpr OpTable kAvx2 = table(cpu::linear_avx2);
  static constexpr OpTable kAvx512 = table(cpu::linear_avx512);
  static constexpr OpTable kAvx512Bf16 = table(cpu::linear_avx512_bf16);
  switch (isa) {
    case device::CpuIsa::kAvx2:
      return kAvx2;
    case device::CpuIsa::kAvx512:
    case device::CpuIsa::kAvx512Vnni:  // float32 activations: nothing for integer products to do
      return kAvx512;
    case device::CpuIsa::kAvx512Bf16:
      return kAvx512Bf16;
  }
  return kAvx2;
}

}  // namespace attune::ops
