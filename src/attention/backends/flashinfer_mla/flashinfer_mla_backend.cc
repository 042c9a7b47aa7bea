#include "attention/backends/flashinfer_mla/flashinfer_mla_backend.h"

#include <algorithm>
#include <utility>

#include "attention/backends/flashinfer/plan_memory.h"
#include "attention/backends/flashinfer/results.h"
#include "attention/backends/flashinfer_mla/mla_launch.h"
#include "attention/backends/flashinfer_mla/mla_schedule.h"
#include "attention/check.h"
#include "base/check.h"
#include "base/log.h"

namespace attune::attention::flashinfer_mla {
namespace {

using tensor::DType;

constexpr int32_t kLatent = 512, kRow = 576;

struct MlaPlan final : Plan {
  MlaPlan(device::Device& device, const ScheduleLimits& limits)
      : scheduler(limits),
        memory(device, 4 * max_schedule_elements(limits), "a flashinfer_mla plan") {}

  Limits limits;
  Scheduler scheduler;
  Schedule schedule;
  Batch batch;
  flashinfer::PlanMemory memory;
  char* partial = nullptr;
  float* partial_lse = nullptr;
};

ScheduleLimits schedule_limits(const Limits& l, const device::Device& device) {
  return {.max_seqs = l.max_seqs,
          .max_tokens = l.max_tokens,
          .heads = l.q_heads,
          .multiprocessors = device.info().multiprocessors};
}

class FlashinferMlaBackend final : public Backend {
 public:
  FlashinferMlaBackend(device::Device& device, MlaLaunch launch)
      : device_(device), launch_(launch) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  Support supports(const Batch& batch) const override {
    Support s;
    if (!batch.causal) s.reasons.push_back("flashinfer_mla masks causally only");
    if (batch.tree_mask) s.reasons.push_back("flashinfer_mla has no tree mask");
    return s;
  }

  int64_t workspace_bytes(const Limits& l) const override {
    return max_partial_rows(schedule_limits(l, device_)) * (kLatent * 2 + 4);
  }

  std::unique_ptr<Plan> make_plan(const Limits& limits, void* workspace) const override {
    ATTUNE_CHECK(limits.kv_heads == 1 && limits.qk_dim == kRow && limits.v_dim == kLatent);
    const ScheduleLimits s = schedule_limits(limits, device_);
    auto plan = std::make_unique<MlaPlan>(device_, s);
    plan->limits = limits;
    plan->partial = static_cast<char*>(workspace);
    plan->partial_lse = reinterpret_cast<float*>(plan->partial + max_partial_rows(s) * kLatent * 2);
    return plan;
  }

  Status plan(const Batch& batch, Plan& plan, device::Stream& stream) const override {
    auto& p = static_cast<MlaPlan&>(plan);
    p.batch = {};
    ATTUNE_RETURN_IF_ERROR(p.memory.status());
    ATTUNE_RETURN_IF_ERROR(check_batch(batch, p.limits));
    ATTUNE_RETURN_IF_ERROR(check_on_device(batch));
    // Its offsets of rows have 32 bits.
    const int64_t width = int64_t{p.limits.q_heads} * kRow;
    if (width * batch.num_tokens >= int64_t{1} << 32)
      return unsupported(base::cat("flashinfer_mla: ", batch.num_tokens, " rows of ", width,
                                   " elements need offsets of more than 32 bits: lower "
                                   "--chunked-prefill-size"));
    p.batch = batch;
    if (batch.num_seqs == 0) return {};
    p.schedule = p.scheduler.make(batch, reinterpret_cast<int32_t*>(p.memory.next()));
    p.memory.copy(0, 4 * p.schedule.used, stream);
    return {};
  }

  void plan_on(Plan&, device::Stream&) const override {}

  void run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const override {
    auto& p = static_cast<MlaPlan&>(plan);
    check_layer(p, layer, kv, io);
    if (p.batch.num_seqs == 0) return;
    const Schedule& s = p.schedule;
    const auto* at = reinterpret_cast<const int32_t*>(p.memory.on_device());
    stream.record_launch("flashinfer_mla",
                         {static_cast<uint32_t>(s.cluster), static_cast<uint32_t>(s.clusters), 1},
                         {256, 1, 1}, {{"heads", layer.q_heads}, {"sequences", p.batch.num_seqs}});
    launch_({.q = io.q,
             .q_stride = io.q_stride,
             .kv = kv.base,
             .page_stride = kv.page_stride / 2,
             .token_stride = kv.k_token_stride / 2,
             .page_size = kv.page_size,
             .heads = layer.q_heads,
             .page_slots = p.batch.on_device.page_slots,
             .out = io.out,
             .out_stride = io.out_stride,
             .lse = io.lse,
             .scale = layer.scale,
             .work_indptr = at + s.work_indptr,
             .q_indptr = at + s.work[kQIndptr],
             .kv_indptr = at + s.work[kKvIndptr],
             .partial_indptr = at + s.work[kPartialIndptr],
             .q_len = at + s.work[kQLen],
             .kv_len = at + s.work[kKvLen],
             .q_start = at + s.work[kQStart],
             .kv_start = at + s.work[kKvStart],
             .kv_end = at + s.work[kKvEnd],
             .row_start = at + s.merge[kRowStart],
             .row_end = at + s.merge[kRowEnd],
             .partial_start = at + s.merge[kPartialStart],
             .partial_end = at + s.merge[kPartialEnd],
             .partial_stride = at + s.merge[kPartialStride],
             .cluster = s.cluster,
             .clusters = s.clusters,
             .partial = p.partial,
             .partial_lse = p.partial_lse,
             .stream = stream.native()});
    if (io.lse)
      flashinfer::launch_natural_log(stream, io.lse, at + s.rows, s.max_rows, layer.q_heads);
  }

 private:
  static void check_layer(const MlaPlan& p, const LayerParams& layer, const kv::PagedKvView& kv,
                          const Io& io) {
    const Limits& l = p.limits;
    ATTUNE_CHECK(layer.q_heads == l.q_heads && layer.kv_heads == 1 && !layer.sinks);
    ATTUNE_CHECK(layer.window == 0 && layer.soft_cap == 0);
    ATTUNE_CHECK(kv.k_dim == kRow && kv.v_dim == kLatent && kv.v_offset == 0);
    ATTUNE_CHECK(kv.page_size == l.page_size && kv.num_slots >= l.num_slots);
    ATTUNE_CHECK(kv.dtype == DType::kBF16 && io.q_dtype == DType::kBF16 &&
                 io.out_dtype == DType::kBF16);
    const int64_t row = std::max(io.q_stride, io.out_stride);
    ATTUNE_CHECK(io.q_stride % 8 == 0 && io.out_stride % 8 == 0 &&
                 row * p.batch.num_tokens < int64_t{1} << 32);
  }

  const Capabilities capabilities_ = flashinfer_mla::capabilities();
  device::Device& device_;
  const MlaLaunch launch_;
};

}  // namespace

std::unique_ptr<Backend> create(device::Device& device) {
#ifdef ATTUNE_FLASHINFER_MLA_HOPPER
  if (device.info().sm == 90) return std::make_unique<FlashinferMlaBackend>(device, launch_hopper);
#endif
  return create_fa2(device);
}

std::unique_ptr<Backend> create_fa2(device::Device& device) {
  return std::make_unique<FlashinferMlaBackend>(device, launch_fa2);
}

}  // namespace attune::attention::flashinfer_mla
