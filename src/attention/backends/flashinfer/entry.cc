// FlashInfer's paged prefill and decode (arXiv:2501.01005), used as headers; this file tells what
// they offer.
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

BackendEntry flashinfer_backend() {
  Capabilities c;
  c.name = "flashinfer";
  c.archs = {Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};
  c.kinds = {AttentionKind::kMha};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.head_dims = {{64, 64}, {128, 128}, {256, 256}};
  c.q_dtypes = {DType::kBF16, DType::kF16};
  c.kv_dtypes = {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2};
  c.window = c.soft_cap = c.tree_mask = c.lse_out = true;
  // Its plan cuts sequences by what else is in the batch.
  c.batch_invariant = false;
  c.pdl = true;
  return {c, "built without FlashInfer"};
}

}  // namespace attune::attention
