// Hopper kernels of FlashAttention-3's class (arXiv:2407.08608), wgmma and TMA; this file tells
// what they offer, their code comes with the CUDA device.
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

BackendEntry fa3_backend() {
  Capabilities c;
  c.name = "fa3";
  c.archs = {Arch::kSm90};
  c.kinds = {AttentionKind::kMha};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.head_dims = {{64, 64}, {128, 128}, {256, 256}};
  c.q_dtypes = {DType::kBF16, DType::kF16};
  c.kv_dtypes = {DType::kBF16, DType::kF16, DType::kF8E4M3};
  c.page_sizes = {1, 2, 4, 8, 16, 32, 64, 128};
  c.window = c.soft_cap = c.sinks = c.tree_mask = c.lse_out = true;
  c.batch_invariant = true;
  c.num_splits = c.pack_gqa = c.pdl = true;
  return {c, "built without CUDA"};
}

}  // namespace attune::attention
