// FlashInfer's latent attention, absorbed over paged latents; this file tells what it offers. Its
// kernels are cooperative launches: no kernel may hold a multiprocessor for ever beside them.
#include "attention/backends/flashinfer_mla/flashinfer_mla_backend.h"
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

namespace flashinfer_mla {

Capabilities capabilities() {
  Capabilities c;
  c.name = "flashinfer_mla";
  c.archs = {Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};
  c.kinds = {AttentionKind::kMla};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.extend_paths = {Path::kAbsorbed};
  c.head_dims = {{576, 512}};
  c.q_dtypes = {DType::kBF16};
  c.kv_dtypes = {DType::kBF16};
  c.lse_out = true;
  c.hides_nan = true;              // its maxima begin at -5e4 and leave NaN out
  c.batch_invariant = false;       // its plan cuts sequences by what else is in the batch
  c.tolerates_host_copies = true;  // tests/gpu/hicache_soak_gpu_test.cc
  return c;
}

}  // namespace flashinfer_mla

BackendEntry flashinfer_mla_backend() {
#ifdef ATTUNE_FLASHINFER
  return {flashinfer_mla::capabilities(), "", flashinfer_mla::create};
#else
  return {flashinfer_mla::capabilities(), "built without FlashInfer"};
#endif
}

}  // namespace attune::attention
