// A backend that is here to be added: the reference under another name.
#include "attention/backends/reference/reference_backend.h"
#include "attention/registry.h"
#include "test_only.h"

namespace attune::attention {

std::string& test_only_lacks() {
  static std::string lacks;
  return lacks;
}

namespace {

Capabilities test_only_capabilities() {
  Capabilities c = reference::capabilities();
  c.name = "test_only";
  return c;
}

class TestOnly final : public Backend {
 public:
  const Capabilities& capabilities() const override { return capabilities_; }
  Support supports(const Batch& batch) const override {
    if (!test_only_lacks().empty()) return {{test_only_lacks()}};
    return inner_->supports(batch);
  }
  int64_t workspace_bytes(const Limits& limits) const override {
    return inner_->workspace_bytes(limits);
  }
  std::unique_ptr<Plan> make_plan(const Limits& limits, void* workspace) const override {
    return inner_->make_plan(limits, workspace);
  }
  Status plan(const Batch& batch, Plan& plan, device::Stream& stream) const override {
    return inner_->plan(batch, plan, stream);
  }
  void plan_on(Plan& plan, device::Stream& stream) const override { inner_->plan_on(plan, stream); }
  void run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const override {
    inner_->run(plan, layer, kv, io, stream);
  }

 private:
  const Capabilities capabilities_ = test_only_capabilities();
  const std::unique_ptr<Backend> inner_ = reference::create(device::Kind::kCpu);
};

}  // namespace

BackendEntry test_only_backend() {
  return {test_only_capabilities(), "",
          [](device::Device&) -> std::unique_ptr<Backend> { return std::make_unique<TestOnly>(); }};
}

}  // namespace attune::attention
