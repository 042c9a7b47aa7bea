// FlashInfer's latent attention, absorbed over paged latents, and its ragged prefill; this file
// tells what they offer.
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

BackendEntry flashinfer_mla_backend() {
  Capabilities c;
  c.name = "flashinfer_mla";
  c.archs = {Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};
  c.kinds = {AttentionKind::kMla};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.extend_paths = {Path::kRagged, Path::kOneShot, Path::kChunked, Path::kAbsorbed};
  c.head_dims = {{576, 512}};
  c.ragged_dims = {{192, 128}};
  c.q_dtypes = {DType::kBF16, DType::kF16};
  // fp8 latents would be converted, the whole pool of them, layer by layer.
  c.kv_dtypes = {DType::kBF16, DType::kF16};
  c.lse_out = true;
  c.batch_invariant = false;  // its plan cuts sequences by what else is in the batch
  c.pdl = true;
  return {c, "built without FlashInfer"};
}

}  // namespace attune::attention
