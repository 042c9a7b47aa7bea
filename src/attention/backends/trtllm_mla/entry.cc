// Ragged attention of an MLA model's up-projected keys and values; decode, verify and absorbed
// extends are others'.
#include "attention/backends/trtllm_mla/trtllm_mla_backend.h"
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

namespace trtllm_mla {

Capabilities capabilities() {
  Capabilities c;
  c.name = "trtllm_mla";
  c.archs = {Arch::kSm90};
  c.kinds = {AttentionKind::kMla};
  c.phases = {Phase::kPrefill};
  c.extend_paths = {Path::kRagged, Path::kOneShot, Path::kChunked};
  c.head_dims = {{576, 512}};
  c.ragged_dims = {{192, 128}};
  c.q_dtypes = {DType::kBF16};
  c.kv_dtypes = {DType::kBF16};
  c.window = c.soft_cap = c.sinks = c.lse_out = true;
  c.batch_invariant = true;  // a row's keys are never split in deterministic mode
  c.num_splits = c.pdl = true;
  return c;
}

}  // namespace trtllm_mla

BackendEntry trtllm_mla_backend() {
#ifdef ATTUNE_FA3
  return {trtllm_mla::capabilities(), "", trtllm_mla::create};
#else
  return {trtllm_mla::capabilities(), "built without kernels for sm90a"};
#endif
}

}  // namespace attune::attention
