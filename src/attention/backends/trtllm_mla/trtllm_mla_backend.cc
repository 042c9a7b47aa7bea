#include "attention/backends/trtllm_mla/trtllm_mla_backend.h"

#include "attention/backends/fa3/launches.h"
#include "attention/backends/fa3/prefill.h"
#include "attention/backends/fa3/without_pdl.h"
#include "attention/check.h"
#include "base/check.h"

namespace attune::attention::trtllm_mla {
namespace {

struct RaggedPlan final : Plan {
  RaggedPlan(device::Device& device, const Limits& l, void* workspace)
      : limits(l), prefill(device, l, workspace) {}

  Limits limits;
  fa3::Prefill prefill;
  Batch batch;
};

class TrtllmMlaBackend final : public Backend {
 public:
  explicit TrtllmMlaBackend(device::Device& device) : device_(device) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  Support supports(const Batch& batch) const override {
    Support s;
    if (!fa3::has_tensor_maps()) s.reasons.push_back("the driver has no tensor maps (CUDA 12)");
    if (batch.tree_mask) s.reasons.push_back("trtllm_mla has no tree mask");
    return s;
  }

  int64_t workspace_bytes(const Limits& l) const override {
    return fa3::Prefill::workspace_bytes(l, device_.info());
  }

  std::unique_ptr<Plan> make_plan(const Limits& limits, void* workspace) const override {
    return std::make_unique<RaggedPlan>(device_, limits, workspace);
  }

  Status plan(const Batch& batch, Plan& plan, device::Stream&) const override {
    auto& p = static_cast<RaggedPlan&>(plan);
    p.batch = {};
    ATTUNE_RETURN_IF_ERROR(p.prefill.status());
    ATTUNE_RETURN_IF_ERROR(check_batch(batch, p.limits));
    ATTUNE_RETURN_IF_ERROR(check_on_device(batch));
    p.batch = batch;
    return {};
  }

  void plan_on(Plan& plan, device::Stream& stream) const override {
    auto& p = static_cast<RaggedPlan&>(plan);
    const fa3::WithoutPdl without(stream, p.limits.tuning.pdl == Toggle::kOff);
    if (p.batch.num_tokens > 0) p.prefill.plan_on(p.batch, stream);
  }

  void run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const override {
    auto& p = static_cast<RaggedPlan&>(plan);
    ATTUNE_CHECK(kv.num_slots == 1);
    const fa3::WithoutPdl without(stream, p.limits.tuning.pdl == Toggle::kOff);
    if (p.batch.num_tokens > 0) p.prefill.run(p.batch, layer, kv, io, stream);
  }

 private:
  const Capabilities capabilities_ = trtllm_mla::capabilities();
  device::Device& device_;
};

}  // namespace

std::unique_ptr<Backend> create(device::Device& device) {
  return std::make_unique<TrtllmMlaBackend>(device);
}

}  // namespace attune::attention::trtllm_mla
