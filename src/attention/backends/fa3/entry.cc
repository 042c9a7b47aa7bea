// What our Hopper kernels offer; the rest is in cuda/.
#include "attention/backends/fa3/fa3_backend.h"
#include "attention/registry.h"

namespace attune::attention {
namespace fa3 {

using tensor::DType;

Capabilities capabilities() {
  Capabilities c;
  c.name = "fa3";
  c.archs = {Arch::kSm90};
  c.kinds = {AttentionKind::kMha};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.head_dims = {{64, 64}, {128, 128}};
  c.q_dtypes = {DType::kBF16};
  c.kv_dtypes = {DType::kBF16, DType::kF16, DType::kF8E4M3};
  c.page_sizes = {1, 2, 4, 8, 16, 32, 64, 128};
  c.window = c.soft_cap = c.sinks = c.tree_mask = c.lse_out = true;
  // In deterministic mode chunks of keys are cut by their positions and added up in their order.
  c.batch_invariant = true;
#ifndef ATTUNE_FAULT_WITHOUT_PDL_WAIT
  c.tolerates_host_copies = true;  // tests/gpu/hicache_soak_gpu_test.cc
#endif
  c.num_splits = c.pack_gqa = c.pdl = true;
  return c;
}

}  // namespace fa3

BackendEntry fa3_backend() {
#ifdef ATTUNE_FA3
  return {fa3::capabilities(), "", fa3::create};
#else
  return {fa3::capabilities(), "built without kernels for sm90a"};
#endif
}

}  // namespace attune::attention
