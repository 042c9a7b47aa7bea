// A decode kernel of FlashMLA's class: 64 query rows against pages of 64 latents. What it is to
// offer; there is no kernel yet.
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

BackendEntry flashmla_backend() {
  Capabilities c;
  c.name = "flashmla";
  c.archs = {Arch::kSm90};
  c.kinds = {AttentionKind::kMla};
  c.phases = {Phase::kDecode, Phase::kVerify};
  c.head_dims = {{576, 512}};
  c.q_dtypes = {DType::kBF16, DType::kF16};
  c.kv_dtypes = {DType::kBF16, DType::kF16};
  c.page_sizes = {64};
  c.lse_out = true;
  // Its scheduler lays all sequences end to end and cuts the whole into equal parts.
  c.batch_invariant = false;
  c.num_splits = c.pdl = true;
  return {c, kNoKernelYet};
}

}  // namespace attune::attention
