#include "attention/backends/fa3/fa3_backend.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "attention/backends/fa3/launches.h"
#include "attention/backends/fa3/prefill.h"
#include "attention/backends/fa3/without_pdl.h"
#include "attention/check.h"
#include "base/check.h"
#include "base/log.h"

namespace attune::attention::fa3 {
namespace {

using tensor::DType;

constexpr int64_t kAlign = 256;
constexpr int64_t aligned(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Partial results there is room for, of items of the least rows.
constexpr int64_t kPartials = 8192;
constexpr int32_t kLeastRows = 8;
// In deterministic mode, of a block's rows and a chunk's keys: few enough keys that one long
// sequence fills the GPU.
constexpr int32_t kFixedRows = 16, kFixedKeys = 512;

// Sizes that follow from the limits. Heads are those of items: KV heads, or query heads where they
// do not share tiles.
struct Sizes {
  int32_t heads = 0, group = 0, share = 1, max_blocks = 0, ctas = 0;

  int32_t max_partials(int32_t block_rows) const {
    return static_cast<int32_t>(std::max<int64_t>(kPartials * kLeastRows / block_rows / heads, 2));
  }
  int32_t max_chunks() const { return max_blocks + max_partials(kLeastRows) + ctas; }
  int64_t partial_bytes(int32_t dim) const {
    int64_t most = 0;
    for (int32_t rows : {8, 16, 32, 64})
      most = std::max(most, int64_t{max_partials(rows)} * heads * rows * (dim + 4) * 4);
    return aligned(most);
  }
  int64_t kept_bytes(int32_t dim) const { return aligned(int64_t{ctas} * kFixedRows * dim * 8); }
  int64_t arrived_bytes() const {
    return aligned((int64_t{max_partials(kLeastRows)} * heads + 1) * 4);
  }
  int64_t list_bytes() const { return aligned(16 + int64_t{max_chunks()} * sizeof(Chunk)); }
};

Sizes sizes_of(const Limits& l, int32_t multiprocessors) {
  Sizes s;
  const bool packed = l.tuning.pack_gqa != Toggle::kOff;
  const int32_t group = l.q_heads / l.kv_heads;
  s.heads = packed ? l.kv_heads : l.q_heads;
  s.group = packed ? group : 1;
  s.share = packed ? 1 : group;
  s.max_blocks =
      static_cast<int32_t>(int64_t{l.max_tokens} * s.group / kLeastRows + l.max_seqs + 1);
  s.ctas = multiprocessors;
  return s;
}

struct Fa3Plan final : Plan {
  Limits limits;
  Sizes sizes;
  Batch batch;
  int32_t block_rows = kLeastRows;
  int32_t runs = 0;                 // since plan_on()
  std::vector<int32_t> windows{0};  // that have a list each
  // Counters, zero between launches; then lists; then the plan kernel's scratch.
  device::Buffer memory;
  Status status;
  float *partials = nullptr, *kept = nullptr;
  std::optional<Prefill> prefill;  // none: no kernel
  bool wide = false;               // the batch is prefill's

  int32_t* arrived() const { return memory.as<int32_t>(); }
  int32_t* taken() const {
    return arrived() + int64_t{sizes.max_partials(kLeastRows)} * sizes.heads;
  }
  WorkList list(size_t i) const {
    char* at =
        memory.as<char>() + sizes.arrived_bytes() + static_cast<int64_t>(i) * sizes.list_bytes();
    return {reinterpret_cast<int32_t*>(at), reinterpret_cast<Chunk*>(at + 16)};
  }
  int32_t* scratch() const { return list(windows.size()).num_chunks; }
};

// Rows of a sequence up to which the other kernel's tiles are filled better.
constexpr int64_t kFewRows = 64;

bool takes_prefill(const Fa3Plan& p, const Batch& b) {
  return p.prefill && b.phase == Phase::kPrefill && !b.tree_mask && !b.deterministic &&
         int64_t{b.max_q_len} * (p.limits.q_heads / p.limits.kv_heads) > kFewRows;
}

// Times in bytes that a multiprocessor reads meanwhile, measured on an H200: what an item takes to
// begin and end; what it takes to add parts up; how much later a CTA begins that had to wait for
// the last launch's end.
constexpr float kItemBytes = 32 << 10, kSplitBytes = 80 << 10, kLateBytes = 128 << 10;
float tile_bytes(const Fa3Plan& p) {
  const Limits& l = p.limits;
  const DType dtype = l.calls.empty() ? DType::kBF16 : l.calls.front().kv.dtype;
  return static_cast<float>(
      tensor::dtype_bytes(dtype, int64_t{planned_tile(p.block_rows)} * (l.qk_dim + l.v_dim)));
}

class Fa3Backend final : public Backend {
 public:
  explicit Fa3Backend(device::Device& device) : device_(device) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  Support supports(const Batch&) const override {
    if (!has_tensor_maps()) return {{"the driver has no tensor maps (CUDA 12)"}};
    return {};
  }

  int64_t workspace_bytes(const Limits& l) const override {
    const Sizes s = sizes_of(l, device_.info().multiprocessors);
    const int64_t few = s.partial_bytes(l.v_dim) + s.kept_bytes(l.v_dim);
    if (!Prefill::has_kernel(l)) return few;
    return std::max(few, Prefill::workspace_bytes(l, device_.info()));
  }

  std::unique_ptr<Plan> make_plan(const Limits& limits, void* workspace) const override {
    ATTUNE_CHECK(limits.kv_heads > 0 && limits.q_heads % limits.kv_heads == 0);
    auto plan = std::make_unique<Fa3Plan>();
    plan->limits = limits;
    plan->sizes = sizes_of(limits, device_.info().multiprocessors);
    for (const Call& call : limits.calls) {
      const int32_t window = std::max(call.layer.window, 0);
      const bool known =
          std::find(plan->windows.begin(), plan->windows.end(), window) != plan->windows.end();
      if (!known && plan->windows.size() < kMostWindows) plan->windows.push_back(window);
    }
    const auto count = static_cast<int64_t>(plan->windows.size());
    const int64_t scratch =
        count * kPlanCtas * plan_scratch(limits.max_seqs, plan->sizes.max_blocks) * 4;
    auto memory = device_.allocate(
        plan->sizes.arrived_bytes() + count * plan->sizes.list_bytes() + scratch, "an fa3 plan");
    if (memory.ok()) {
      plan->memory = std::move(*memory);
    } else {
      plan->status = memory.status();
    }
    if (plan->status.ok() && Prefill::has_kernel(limits)) {
      plan->prefill.emplace(device_, limits, workspace);
      plan->status = plan->prefill->status();
    }
    plan->partials = static_cast<float*>(workspace);
    plan->kept = reinterpret_cast<float*>(static_cast<char*>(workspace) +
                                          plan->sizes.partial_bytes(limits.v_dim));
    return plan;
  }

  Status plan(const Batch& batch, Plan& plan, device::Stream&) const override {
    auto& p = static_cast<Fa3Plan&>(plan);
    p.batch = {};
    ATTUNE_RETURN_IF_ERROR(p.status);
    ATTUNE_RETURN_IF_ERROR(check_batch(batch, p.limits));
    ATTUNE_RETURN_IF_ERROR(check_on_device(batch));
    p.batch = batch;
    p.wide = takes_prefill(p, batch);
    const int64_t rows = int64_t{batch.max_q_len} * p.sizes.group;
    if (!p.wide && rows > Group(p.sizes.group).divides_below()) {
      p.batch = {};
      return unsupported(base::cat("fa3: ", batch.max_q_len, " new tokens of a sequence for ",
                                   p.sizes.group, " query heads of a KV head"));
    }
    // A row's sums then do not depend on what else there is: one kernel for all batches.
    p.block_rows = batch.deterministic ? kFixedRows : decode_rows(rows);
    return {};
  }

  void plan_on(Plan& plan, device::Stream& stream) const override {
    auto& p = static_cast<Fa3Plan&>(plan);
    p.runs = 0;
    if (p.batch.num_tokens == 0) return;
    const WithoutPdl without(stream, p.limits.tuning.pdl == Toggle::kOff);
    if (p.wide) return p.prefill->plan_on(p.batch, stream);
    const float tile = tile_bytes(p);
    PlanArgs args{.at = p.batch.on_device,
                  .num_seqs = p.batch.num_seqs,
                  .causal = p.batch.causal,
                  .group = Group(p.sizes.group),
                  .heads = p.sizes.heads,
                  .block_rows = p.block_rows,
                  .page_size = p.limits.page_size,
                  .tile = planned_tile(p.block_rows),
                  .cut = {.ctas = p.sizes.ctas,
                          .num_splits = p.batch.deterministic ? 0 : p.limits.tuning.num_splits,
                          .fixed = p.batch.deterministic ? kFixedKeys : 0,
                          .max_partials = p.sizes.max_partials(p.block_rows),
                          .item_cost = kItemBytes / tile,
                          .split_cost = kSplitBytes / tile,
                          .late_cost = kLateBytes / tile},
                  .num_windows = static_cast<int32_t>(p.windows.size()),
                  .scratch = p.scratch(),
                  .scratch_stride = plan_scratch(p.limits.max_seqs, p.sizes.max_blocks),
                  .max_blocks = p.sizes.max_blocks};
    if (!p.batch.tree_mask) args.at.tree_mask = nullptr;
    for (size_t i = 0; i < p.windows.size(); ++i) {
      args.windows[i] = p.windows[i];
      args.lists[i] = p.list(i);
    }
    launch_plan(stream, args);
  }

  void run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const override {
    auto& p = static_cast<Fa3Plan&>(plan);
    check_layer(p, layer, kv, io);
    if (p.batch.num_tokens == 0) return;
    const WithoutPdl without(stream, p.limits.tuning.pdl == Toggle::kOff);
    if (p.wide) return p.prefill->run(p.batch, layer, kv, io, stream);
    // Without a list of its own a window's chunks are cut out of all keys'.
    const auto found = std::find(p.windows.begin(), p.windows.end(), layer.window);
    DecodeArgs args{
        .at = p.batch.on_device,
        .work =
            p.list(found == p.windows.end() ? 0 : static_cast<size_t>(found - p.windows.begin())),
        .layer = layer,
        .kv = kv,
        .io = io,
        .group = Group(p.sizes.group),
        .heads = p.sizes.heads,
        .share = p.sizes.share,
        .causal = p.batch.causal,
        .early = p.runs > 0 && stream.pdl(),
        .num_slots = p.limits.num_slots,
        .page_size = kv.page_size,
        .page_shift = std::countr_zero(static_cast<uint32_t>(kv.page_size)),
        .fixed = p.batch.deterministic ? kFixedKeys : 0,
        .partials = p.partials,
        .scratch = p.kept,
        .arrived = p.arrived(),
        .taken = p.taken()};
    if (!p.batch.tree_mask) args.at.tree_mask = nullptr;
    decode_launch(kv.k_dim, kv.dtype)(stream, kv, args, p.block_rows, p.sizes.ctas);
    ++p.runs;
  }

 private:
  static void check_layer(const Fa3Plan& p, const LayerParams& layer, const kv::PagedKvView& kv,
                          const Io& io) {
    const Limits& l = p.limits;
    ATTUNE_CHECK(layer.q_heads == l.q_heads && layer.kv_heads == l.kv_heads);
    ATTUNE_CHECK(kv.kv_heads == l.kv_heads && kv.k_dim == l.qk_dim && kv.v_dim == l.qk_dim);
    ATTUNE_CHECK(kv.page_size == l.page_size && kv.num_slots >= l.num_slots);
    ATTUNE_CHECK(decode_launch(kv.k_dim, kv.dtype) != nullptr);
    ATTUNE_CHECK(io.q_dtype == DType::kBF16 && io.out_dtype == DType::kBF16);
    ATTUNE_CHECK(io.q_stride % 8 == 0 && io.out_stride % 8 == 0);
  }

  const Capabilities capabilities_ = fa3::capabilities();
  device::Device& device_;
};

}  // namespace

std::unique_ptr<Backend> create(device::Device& device) {
  return std::make_unique<Fa3Backend>(device);
}

}  // namespace attune::attention::fa3
