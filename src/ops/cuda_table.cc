#include "ops/cuda_table.h"

#include "ops/cuda_kernels.h"

namespace attune::ops {

const OpTable* cuda_ops() {
  static constexpr OpTable kTable = {
      .embed = cuda::embed,
      .rms_norm = cuda::rms_norm,
      .rope_table = cuda::rope_table,
      .rope_append = cuda::rope_append,
      .silu_mul = cuda::silu_mul,
      .linear = cuda::linear,
      .linear_group = cuda::linear_group,
      .expert_linear = cuda::expert_linear,
      .soft_cap = cuda::soft_cap,
      .rope = cuda::rope,
      .latent_append = cuda::latent_append,
      .latent_gather = cuda::latent_gather,
      .cast = cuda::cast,
      .moe_route = cuda::moe_route,
      .moe_sort = cuda::moe_sort,
      .copy_rows = cuda::copy_rows,
      .moe_combine = cuda::moe_combine,
      .bulk_read = cuda::bulk_read,
      .merge_state = cuda::merge_state,
      .kv_copy = cuda::kv_copy,
  };
  return &kTable;
}

}  // namespace attune::ops
