// FlashInfer's paged prefill and decode (arXiv:2501.01005), used as headers; this file tells what
// they offer.
#include "attention/backends/flashinfer/flashinfer_backend.h"
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

namespace flashinfer {

Capabilities capabilities() {
  Capabilities c;
  c.name = "flashinfer";
  c.archs = {Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};
  c.kinds = {AttentionKind::kMha};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.head_dims = {{64, 64}, {128, 128}};
  c.q_dtypes = {DType::kBF16};
  c.kv_dtypes = {DType::kBF16, DType::kF8E4M3};
  c.window = c.soft_cap = c.tree_mask = c.lse_out = true;
  // Deterministic batches are not split, and their tiles are of one size to a phase.
  c.batch_invariant = true;
  c.pdl = true;
  return c;
}

}  // namespace flashinfer

BackendEntry flashinfer_backend() {
#ifdef ATTUNE_FLASHINFER
  return {flashinfer::capabilities(), "", flashinfer::create};
#else
  return {flashinfer::capabilities(), "built without FlashInfer"};
#endif
}

}  // namespace attune::attention
