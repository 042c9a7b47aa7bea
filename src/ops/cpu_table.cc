#include "ops/cpu_kernels.h"
#include "ops/gemm/cpu/linear.h"

namespace attune::ops {
namespace {

// The small ops serve every level; the products have a kernel per level.
constexpr OpTable table(void (*linear)(const LinearParams&, Stream&),
                        void (*linear_group)(const LinearParams*, int32_t, Stream&),
                        void (*expert_linear)(const ExpertLinearParams&, Stream&)) {
  return {
      .embed = cpu::embed,
      .rms_norm = cpu::rms_norm,
      .rope_table = cpu::rope_table,
      .rope_append = cpu::rope_append,
      .silu_mul = cpu::silu_mul,
      .linear = linear,
      .linear_group = linear_group,
      .expert_linear = expert_linear,
      .soft_cap = cpu::soft_cap,
      .rope = cpu::rope,
      .latent_append = cpu::latent_append,
      .latent_gather = cpu::latent_gather,
      .cast = cpu::cast,
      .moe_route = cpu::moe_route,
      .moe_sort = cpu::moe_sort,
      .copy_rows = cpu::copy_rows,
      .moe_combine = cpu::moe_combine,
      .bulk_read = cpu::bulk_read,
      .merge_state = cpu::merge_state,
      .kv_copy = cpu::kv_copy,
  };
}

}  // namespace

const OpTable& cpu_ops(device::CpuIsa isa) {
  static constexpr OpTable kAvx2 =
      table(cpu::linear_avx2, cpu::linear_group_avx2, cpu::expert_linear<cpu::linear_group_avx2>);
  static constexpr OpTable kAvx512 = table(cpu::linear_avx512, cpu::linear_group_avx512,
                                           cpu::expert_linear<cpu::linear_group_avx512>);
  static constexpr OpTable kAvx512Bf16 =
      table(cpu::linear_avx512_bf16, cpu::linear_group_avx512_bf16,
            cpu::expert_linear<cpu::linear_group_avx512_bf16>);
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
