// What it offers, also to builds without it; the rest is in cuda/.
#include "attention/backends/cudnn/cudnn_backend.h"
#include "attention/registry.h"

namespace attune::attention {
namespace cudnn {

using tensor::DType;

Capabilities capabilities() {
  Capabilities c;
  c.name = "cudnn";
  c.archs = {Arch::kSm80, Arch::kSm89, Arch::kSm90, Arch::kSm100};
  c.kinds = {AttentionKind::kMha};
  c.phases = {Phase::kPrefill, Phase::kDecode};
  c.head_dims = {{64, 64}, {128, 128}, {256, 256}};
  c.q_dtypes = {DType::kBF16, DType::kF16};
  c.kv_dtypes = {DType::kBF16, DType::kF16};
  c.kv_as_q = true;
  c.page_sizes = {16, 32, 64, 128};
  c.window = c.lse_out = true;
  // Values of masked keys are multiplied by a weight of 0, to the end of a tile of pages.
  c.reads_past_end = true;
  // Which kernel its heuristics take depends on the batch; where keys are split, an LSE's last bit
  // changes from run to run.
  c.batch_invariant = false;
  // tests/gpu/hicache_soak_gpu_test.cc: as many words differ by rounding beside copies as alone,
  // and none by more.
  c.tolerates_host_copies = true;
  return c;
}

}  // namespace cudnn

BackendEntry cudnn_backend() {
#ifdef ATTUNE_CUDNN
  return {cudnn::capabilities(), "", cudnn::create};
#else
  return {cudnn::capabilities(), "built without cuDNN's headers"};
#endif
}

}  // namespace attune::attention
