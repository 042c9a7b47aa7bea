// FlashInfer's paged prefill and decode (arXiv:2501.01005), used as headers; this file tells what
// they offer.
#include "attention/backends/flashinfer/flashinfer_backend.h"
#include "attention/backends/flashinfer/launches.h"
#include "attention/registry.h"

namespace attune::attention {

using tensor::DType;

namespace flashinfer {
namespace {

// Units are made for all head sizes and types of a set (CMakeLists.txt); a build without FlashInfer
// speaks of the core set.
bool is_built([[maybe_unused]] int32_t head_dim, [[maybe_unused]] DType kv_dtype) {
#ifdef ATTUNE_FLASHINFER
  return tile_launch(head_dim, kv_dtype, TileKind::kCausal) != nullptr;
#else
  return head_dim <= 128 && kv_dtype != DType::kF16;
#endif
}

}  // namespace

Capabilities capabilities() {
  Capabilities c;
  c.name = "flashinfer";
  c.archs = {Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};
  c.kinds = {AttentionKind::kMha};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.q_dtypes = {DType::kBF16};
  for (int32_t dim : {64, 128, 256})
    (is_built(dim, DType::kBF16) ? c.head_dims : c.unbuilt.head_dims).push_back({dim, dim});
  for (DType dtype : {DType::kBF16, DType::kF8E4M3, DType::kF16})
    (is_built(c.head_dims.front().qk, dtype) ? c.kv_dtypes : c.unbuilt.kv_dtypes).push_back(dtype);
  c.unbuilt.option = "-DATTUNE_CUDA_KERNELS=full";
  c.window = c.soft_cap = c.tree_mask = c.lse_out = true;
  c.batch_invariant = false;       // tiles follow the batch, and a phase's differ from another's
  c.tolerates_host_copies = true;  // tests/gpu/hicache_soak_gpu_test.cc
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
