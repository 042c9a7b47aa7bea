#include "attention/backends/cpu/cpu_backend.h"

#include <atomic>

#include "attention/backends/cpu/schedule.h"
#include "attention/check.h"
#include "base/check.h"

namespace attune::attention::cpu {
namespace {

using tensor::DType;

// Below this many multiply-adds (some 5 us of one core) handing work to others does not pay.
constexpr int64_t kInlineMacs = 200'000;

struct CpuPlan final : Plan {
  Limits limits;
  char* scratch = nullptr;  // [threads] of scratch_stride bytes
  int64_t scratch_stride = 0;
  float* partials = nullptr;
  Schedule schedule;
};

// One layer: threads take items until none is left.
class LayerRun {
 public:
  LayerRun(const Kernels& kernels, CpuPlan& plan, const Job& job)
      : kernels_(kernels), plan_(plan), job_(job) {
    for (size_t i = 0; i < plan.schedule.tiles.size(); ++i)
      plan.schedule.split_of[i].left = plan.schedule.tiles[i].num_splits();
  }

  void work(int thread) {
    const auto count = static_cast<int64_t>(plan_.schedule.items.size());
    void* scratch = plan_.scratch + thread * plan_.scratch_stride;
    for (;;) {
      const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      run_item(plan_.schedule.items[i], scratch);
    }
  }

 private:
  void run_item(const WorkItem& item, void* scratch) {
    const Tile& tile = plan_.schedule.tiles[item.tile];
    if (item.split < 0) return kernels_.attend(job_, tile, scratch);
    SplitTile& split = plan_.schedule.split_of[item.tile];
    float* partials = plan_.partials + split.partials;
    const int64_t each = kernels_.partial_floats(tile.num_q * tile.num_heads, plan_.limits.v_dim);
    kernels_.attend_split(job_, tile, item.split, partials + item.split * each, scratch);
    if (std::atomic_ref(split.left).fetch_sub(1, std::memory_order_acq_rel) == 1)
      kernels_.merge_splits(job_, tile, partials, scratch);
  }

  const Kernels& kernels_;
  CpuPlan& plan_;
  const Job job_;
  std::atomic<int64_t> next_{0};
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(device::CpuIsa isa)
      : kernels_(isa >= device::CpuIsa::kAvx512 ? kernels_avx512() : kernels_avx2()) {}

  const Capabilities& capabilities() const override { return capabilities_; }
  Support supports(const Batch&) const override { return {}; }

  int64_t workspace_bytes(const Limits& l) const override {
    return l.threads * kernels_.scratch_bytes(l.qk_dim, l.v_dim) +
           4 * partial_area_floats(l, kernels_);
  }

  std::unique_ptr<Plan> make_plan(const Limits& limits, void* workspace) const override {
    ATTUNE_CHECK(limits.kv_heads > 0 && limits.q_heads % limits.kv_heads == 0);
    auto plan = std::make_unique<CpuPlan>();
    plan->limits = limits;
    plan->scratch = static_cast<char*>(workspace);
    plan->scratch_stride = kernels_.scratch_bytes(limits.qk_dim, limits.v_dim);
    plan->partials =
        reinterpret_cast<float*>(plan->scratch + limits.threads * plan->scratch_stride);
    return plan;
  }

  Status plan(const Batch& batch, Plan& plan, device::Stream&) const override {
    auto& p = static_cast<CpuPlan&>(plan);
    p.schedule.items.clear();
    ATTUNE_RETURN_IF_ERROR(check_batch(batch, p.limits));
    make_schedule(batch, p.limits, kernels_, &p.schedule);
    return {};
  }

  void plan_on(Plan&, device::Stream&) const override {}

  void run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const override {
    auto& p = static_cast<CpuPlan&>(plan);
    const Limits& l = p.limits;
    ATTUNE_CHECK(layer.q_heads == l.q_heads && layer.kv_heads == l.kv_heads);
    ATTUNE_CHECK(kv.kv_heads == l.kv_heads && kv.k_dim == l.qk_dim && kv.v_dim == l.v_dim);
    ATTUNE_CHECK(kv.page_size == l.page_size && kv.num_slots >= l.num_slots);
    LayerRun run(kernels_, p, {&layer, &kv, &io});
    if (p.schedule.macs <= kInlineMacs || p.schedule.items.size() == 1) return run.work(0);
    ATTUNE_CHECK(stream.pool().size() <= l.threads);
    stream.pool().run([&](int thread, int) { run.work(thread); });
  }

 private:
  const Capabilities capabilities_ = cpu::capabilities();
  const Kernels& kernels_;
};

}  // namespace

Capabilities capabilities() {
  Capabilities c;
  c.name = "cpu";
  c.archs = {Arch::kCpu};
  c.kinds = {AttentionKind::kMha, AttentionKind::kMla};
  c.extend_paths = {Path::kRagged, Path::kOneShot, Path::kChunked, Path::kAbsorbed};
  c.phases = {Phase::kPrefill, Phase::kDecode, Phase::kVerify, Phase::kDraftExtend};
  c.max_head_dim = 1024;
  c.q_dtypes = {DType::kF32, DType::kBF16, DType::kF16};
  c.kv_dtypes = {DType::kF32, DType::kBF16, DType::kF16};
  c.window = c.soft_cap = c.sinks = c.tree_mask = c.lse_out = true;
  c.batch_invariant = true;
  c.tolerates_host_copies = true;
  c.num_splits = c.pack_gqa = true;
  return c;
}

std::unique_ptr<Backend> create(device::CpuIsa isa) {
  return std::make_unique<CpuBackend>(isa);
}

}  // namespace attune::attention::cpu
