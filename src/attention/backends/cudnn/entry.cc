// cuDNN's fused attention through its frontend; this file tells what it offers.
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

BackendEntry cudnn_backend() {
  Capabilities c;
  c.name = "cudnn";
  c.archs = {Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};
  c.kinds = {AttentionKind::kMha};
  c.phases = {Phase::kPrefill, Phase::kDecode};
  c.head_dims = {{64, 64}, {128, 128}};
  c.q_dtypes = {DType::kBF16, DType::kF16};
  c.kv_dtypes = {DType::kBF16, DType::kF16};
  c.page_sizes = {16, 32, 64, 128};
  c.lse_out = true;
  // Which kernel its heuristics take depends on the batch.
  c.batch_invariant = false;
  return {c, "built without cuDNN"};
}

}  // namespace attune::attention
