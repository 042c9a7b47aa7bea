// Latent attention by the contract of SGLang's backend of this name: one decode-shaped kernel over
// paged latents for decode, verify and extends, and a ragged kernel for up-projected keys; this
// file tells what they offer, their code comes with the CUDA device.
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

BackendEntry trtllm_mla_backend() {
  Capabilities c;
  c.name = "trtllm_mla";
  c.archs = {Arch::kSm90};
  c.kinds = {AttentionKind::kMla};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  // kAbsorbed is row M6: the decode-shaped kernel with any number of queries.
  c.extend_paths = {Path::kRagged, Path::kOneShot, Path::kChunked, Path::kAbsorbed};
  c.head_dims = {{576, 512}};
  c.ragged_dims = {{192, 128}};
  c.q_dtypes = {DType::kBF16, DType::kF16};
  c.kv_dtypes = {DType::kBF16, DType::kF16, DType::kF8E4M3};
  c.page_sizes = {32, 64};
  c.lse_out = true;
  c.batch_invariant = true;
  c.num_splits = c.pdl = true;
  return {c, "built without CUDA"};
}

}  // namespace attune::attention
