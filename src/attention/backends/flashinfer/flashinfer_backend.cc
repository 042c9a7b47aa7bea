#include "attention/backends/flashinfer/flashinfer_backend.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "attention/backends/flashinfer/hopper_schedule.h"
#include "attention/backends/flashinfer/launches.h"
#include "attention/backends/flashinfer/plan_memory.h"
#include "attention/backends/flashinfer/results.h"
#include "attention/backends/flashinfer/schedule.h"
#include "attention/backends/flashinfer/tile.h"
#include "attention/check.h"
#include "base/check.h"
#include "base/log.h"

namespace attune::attention::flashinfer {
namespace {

using tensor::DType;

constexpr int64_t kAlign = 256;

// kSplit cuts keys into chunks; its layout of partial results depends on the window, so windowed
// layers take kWhole, in which every tile reads all its keys. kRows has neither tiles nor windows.
enum Kind { kSplit, kWhole, kRows, kNumKinds };

struct FlashinferPlan final : Plan {
  Limits limits;
  ScheduleLimits schedule_limits;
  ScheduleLayout layout;
  std::array<Schedule, kNumKinds> schedules;
  std::array<bool, kNumKinds> there{};
  std::optional<HopperScheduler> hopper_scheduler;  // none: not sm90, or no such head size
  std::optional<HopperSchedule> hopper;
  Batch batch;
  bool more_queries_than_keys = false;
  std::optional<PlanMemory> memory;  // [kNumKinds] of layout.bytes, then Hopper's schedule
  char* partial = nullptr;
  float* partial_lse = nullptr;
  char* float16_q = nullptr;  // for a pool of float16
  char* dense = nullptr;      // for an output whose rows lie apart, which FlashInfer cannot write
};

int64_t partial_bytes(const Limits& l, const ScheduleLimits& s) {
  const int64_t bytes = max_partial_rows(s) * l.q_heads * l.v_dim * 2;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

int64_t partial_lse_bytes(const Limits& l, const ScheduleLimits& s) {
  return (max_partial_rows(s) * l.q_heads * 4 + kAlign - 1) / kAlign * kAlign;
}

// Of a step's queries, or of its output.
int64_t rows_bytes(const Limits& l) {
  const int64_t bytes = int64_t{l.max_tokens} * l.q_heads * l.v_dim * 2;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Whether this build has kernels for such a pool, and so queries to be made float16.
bool has_float16(int32_t head_dim) {
  return tile_launch(head_dim, DType::kF16, TileKind::kCausal) != nullptr;
}

bool sees_later_queries(const Batch& b) {
  for (int32_t s = 0; b.tree_mask && s < b.num_seqs; ++s)
    for (int32_t i = 0; i < b.q_indptr[s + 1] - b.q_indptr[s] && i < 63; ++i)
      if (b.tree_mask[b.q_indptr[s] + i] >> (i + 1)) return true;
  return false;
}

bool has_more_queries_than_keys(const Batch& b) {
  for (int32_t s = 0; s < b.num_seqs; ++s)
    if (b.q_indptr[s + 1] - b.q_indptr[s] > b.kv_len[s]) return true;
  return false;
}

class FlashinferBackend final : public Backend {
 public:
  explicit FlashinferBackend(device::Device& device) : device_(device) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  Support supports(const Batch& batch) const override {
    if (sees_later_queries(batch))
      return {{"flashinfer takes token trees in which a query sees earlier ones only"}};
    return {};
  }

  int64_t workspace_bytes(const Limits& l) const override {
    const ScheduleLimits s = schedule_limits(l);
    return partial_bytes(l, s) + partial_lse_bytes(l, s) +
           rows_bytes(l) * (has_float16(l.qk_dim) ? 2 : 1);
  }

  std::unique_ptr<Plan> make_plan(const Limits& limits, void* workspace) const override {
    ATTUNE_CHECK(limits.kv_heads > 0 && limits.q_heads % limits.kv_heads == 0);
    auto plan = std::make_unique<FlashinferPlan>();
    plan->limits = limits;
    plan->schedule_limits = schedule_limits(limits);
    plan->layout = schedule_layout(plan->schedule_limits);
    int64_t bytes = plan->layout.bytes * kNumKinds;
    if (device_.info().sm == 90 && hopper_launch(limits.qk_dim)) {
      plan->hopper_scheduler.emplace(plan->schedule_limits, hopper_tile(limits.qk_dim));
      bytes += 4 * plan->hopper_scheduler->max_elements();
    }
    plan->memory.emplace(device_, bytes, "a flashinfer plan");
    plan->partial = static_cast<char*>(workspace);
    char* after = plan->partial + partial_bytes(limits, plan->schedule_limits);
    plan->partial_lse = reinterpret_cast<float*>(after);
    plan->dense = after + partial_lse_bytes(limits, plan->schedule_limits);
    plan->float16_q = plan->dense + rows_bytes(limits);
    return plan;
  }

  Status plan(const Batch& batch, Plan& plan, device::Stream& stream) const override {
    auto& p = static_cast<FlashinferPlan&>(plan);
    p.batch = {};
    p.there = {};
    p.hopper.reset();
    ATTUNE_RETURN_IF_ERROR(p.memory->status());
    ATTUNE_RETURN_IF_ERROR(check_batch(batch, p.limits));
    ATTUNE_RETURN_IF_ERROR(check_on_device(batch));
    // Its offsets of query rows have 32 bits.
    const int64_t width = int64_t{p.limits.q_heads} * p.limits.qk_dim;
    if (width * batch.num_tokens >= int64_t{1} << 31)
      return unsupported(base::cat("flashinfer: ", batch.num_tokens, " rows of ", width,
                                   " elements need offsets of more than 32 bits: lower "
                                   "--chunked-prefill-size"));
    p.batch = batch;
    if (batch.num_seqs == 0) return {};
    p.more_queries_than_keys = has_more_queries_than_keys(batch);
    char* staged = p.memory->next();
    const auto make = [&](Kind kind, auto&& schedule) {
      const int64_t at = kind * p.layout.bytes;
      p.schedules[kind] = schedule(staged + at);
      p.there[kind] = true;
      const int64_t used = p.schedules[kind].split ? 4 * (int64_t{batch.num_tokens} + 1) : 0;
      p.memory->copy(at, p.layout.merge_indptr + used, stream);
    };
    const auto tiles = [&](Split split) {
      return [&, split](char* to) {
        return schedule_tiles(batch, p.schedule_limits, split, p.layout, to);
      };
    };
    const bool rows = takes_rows(p);
    if (rows)
      make(kRows, [&](char* to) { return schedule_rows(batch, p.schedule_limits, p.layout, to); });
    if (!rows) make(kSplit, tiles(Split::kAuto));
    if (!p.there[kSplit] || p.schedules[kSplit].split) make(kWhole, tiles(Split::kNever));
    if (takes_hopper(p)) {
      const int64_t at = kNumKinds * p.layout.bytes;
      p.hopper = p.hopper_scheduler->make(batch, reinterpret_cast<int32_t*>(staged + at));
      p.memory->copy(at, 4 * p.hopper->used, stream);
    }
    return {};
  }

  void plan_on(Plan&, device::Stream&) const override {}

  void run(Plan& plan, const LayerParams& layer, const kv::PagedKvView& kv, const Io& io,
           device::Stream& stream) const override {
    auto& p = static_cast<FlashinferPlan&>(plan);
    check_layer(p, layer, kv, io);
    if (p.batch.num_seqs == 0) return;
    LayerCall call = layer_call(p, layer, kv, io, stream);
    const bool plain = layer.window == 0 && layer.soft_cap == 0 && kv.dtype == DType::kBF16;
    const int64_t width = int64_t{layer.q_heads} * kv.v_dim;
    const bool hopper = p.hopper && plain, apart = io.out_stride != width && !hopper;
    if (apart) call.out = p.dense;
    Kind kind = p.there[kWhole] ? kWhole : kSplit;
    if (hopper) {
      run_hopper(p, kv, call, stream);
    } else if (p.there[kRows] && layer.window == 0) {
      kind = run_rows(p, kv, call, stream);
    } else {
      kind = run_tiles(p, kv, call, stream);
    }
    const char* at = p.memory->on_device() + kind * p.layout.bytes;
    const auto* rows = reinterpret_cast<const int32_t*>(at + p.layout.rows);
    const int32_t max_rows = p.schedules[kind].max_rows;
    if (apart) launch_spread_rows(stream, p.dense, io.out, rows, max_rows, width, io.out_stride);
    if (io.lse) launch_natural_log(stream, io.lse, rows, max_rows, layer.q_heads);
  }

 private:
  ScheduleLimits schedule_limits(const Limits& l) const {
    const RowKernel rows = row_kernel(l.qk_dim, DType::kBF16);
    return {.max_seqs = l.max_seqs,
            .max_tokens = l.max_tokens,
            .q_heads = l.q_heads,
            .kv_heads = l.kv_heads,
            .page_size = l.page_size,
            .multiprocessors = device_.info().multiprocessors,
            .row_blocks_per_sm = rows.blocks_per_sm ? rows.blocks_per_sm() : 1,
            .max_tile = largest_tile(l.qk_dim)};
  }

  // With one query head per KV head tensor cores multiply mostly padding.
  static bool takes_rows(const FlashinferPlan& p) {
    return p.batch.phase == Phase::kDecode && p.schedule_limits.group() == 1 &&
           p.batch.max_q_len <= 1 && p.batch.causal && !p.batch.tree_mask &&
           !p.more_queries_than_keys;
  }

  static bool takes_hopper(const FlashinferPlan& p) {
    const Batch& b = p.batch;
    return p.hopper_scheduler && b.phase == Phase::kPrefill && b.causal && !b.tree_mask &&
           !p.more_queries_than_keys && p.hopper_scheduler->suits(b);
  }

  static void check_layer(const FlashinferPlan& p, const LayerParams& layer,
                          const kv::PagedKvView& kv, const Io& io) {
    const Limits& l = p.limits;
    ATTUNE_CHECK(layer.q_heads == l.q_heads && layer.kv_heads == l.kv_heads && !layer.sinks);
    ATTUNE_CHECK(kv.kv_heads == l.kv_heads && kv.k_dim == l.qk_dim && kv.v_dim == l.qk_dim);
    ATTUNE_CHECK(kv.page_size == l.page_size && kv.num_slots >= l.num_slots);
    ATTUNE_CHECK(kv.k_head_stride == kv.v_head_stride && kv.k_token_stride == kv.v_token_stride);
    ATTUNE_CHECK(io.q_dtype == DType::kBF16 && io.out_dtype == DType::kBF16);
    ATTUNE_CHECK(io.out_stride % 8 == 0 && io.out_stride >= int64_t{l.q_heads} * l.v_dim);
    ATTUNE_CHECK(io.q_stride % 8 == 0 && io.q_stride * p.batch.num_tokens < int64_t{1} << 31);
  }

  static LayerCall layer_call(const FlashinferPlan& p, const LayerParams& layer,
                              const kv::PagedKvView& kv, const Io& io, device::Stream& stream) {
    const int64_t elem = tensor::dtype_bytes(kv.dtype, 1);
    const char* base = static_cast<const char*>(kv.base);
    return {.q = io.q,
            .q_stride = io.q_stride,
            .out = io.out,
            .out_stride = io.out_stride,
            .lse = io.lse,
            .k = base,
            .v = base + kv.v_offset,
            .page_stride = kv.page_stride / elem,
            .head_stride = kv.k_head_stride / elem,
            .token_stride = kv.k_token_stride / elem,
            .page_size = kv.page_size,
            .q_heads = layer.q_heads,
            .kv_heads = layer.kv_heads,
            .scale = layer.scale,
            .soft_cap = layer.soft_cap,
            .window = layer.window,
            .pdl = stream.pdl() && p.limits.tuning.pdl != Toggle::kOff,
            .stream = stream.native()};
  }

  static void run_hopper(const FlashinferPlan& p, const kv::PagedKvView& kv, const LayerCall& call,
                         device::Stream& stream) {
    const auto* at =
        reinterpret_cast<const int32_t*>(p.memory->on_device() + kNumKinds * p.layout.bytes);
    const auto& arrays = p.hopper->arrays;
    stream.record_launch("flashinfer_hopper",
                         {static_cast<uint32_t>(p.schedule_limits.multiprocessors), 1, 1},
                         {384, 1, 1}, {{"tokens", p.batch.num_tokens}, {"heads", call.q_heads}});
    hopper_launch(kv.k_dim)(call, {.num_tokens = p.batch.num_tokens,
                                   .page_slots = p.batch.on_device.page_slots,
                                   .work_indptr = at + p.hopper->work_indptr,
                                   .q_tile = at + arrays[kQTile],
                                   .head = at + arrays[kHead],
                                   .q_indptr = at + arrays[kQIndptr],
                                   .kv_indptr = at + arrays[kKvIndptr],
                                   .q_len = at + arrays[kQLen],
                                   .kv_len = at + arrays[kKvLen]});
  }

  static Kind run_rows(const FlashinferPlan& p, const kv::PagedKvView& kv, const LayerCall& call,
                       device::Stream& stream) {
    const Schedule& made = p.schedules[kRows];
    const char* at = p.memory->on_device() + kRows * p.layout.bytes;
    const auto ints = [&](int64_t offset) { return reinterpret_cast<const int32_t*>(at + offset); };
    const RowArrays arrays{.num_rows = p.batch.num_seqs,
                           .kv_len = ints(p.layout.row_kv_len),
                           .page_start = ints(p.layout.o_indptr),
                           .page_slots = p.batch.on_device.page_slots,
                           .row = ints(p.layout.request),
                           .kv_chunk = ints(p.layout.kv_chunk),
                           .valid = reinterpret_cast<const bool*>(at + p.layout.valid),
                           .chunk_tokens = ints(p.layout.chunk_tokens),
                           .blocks = made.blocks,
                           .partial = made.split ? p.partial : nullptr,
                           .partial_lse = p.partial_lse,
                           .merge_indptr = ints(p.layout.merge_indptr),
                           .rows = ints(p.layout.rows)};
    record(stream, "flashinfer_rows", made, call);
    row_kernel(kv.k_dim, kv.dtype).launch(call, arrays);
    return kRows;
  }

  static Kind run_tiles(const FlashinferPlan& p, const kv::PagedKvView& kv, LayerCall call,
                        device::Stream& stream) {
    const Batch& b = p.batch;
    const Schedule& any = p.schedules[p.there[kSplit] ? kSplit : kWhole];
    const bool odd_tree =
        b.tree_mask && (call.window > 0 || call.soft_cap > 0 ||
                        int64_t{b.max_q_len} * p.schedule_limits.group() > any.tile);
    const bool general = !b.causal || p.more_queries_than_keys || odd_tree;
    const bool split = p.there[kSplit] && (call.window == 0 || general || !p.there[kWhole]);
    const Kind kind = split ? kSplit : kWhole;
    const Schedule& made = p.schedules[kind];
    const char* at = p.memory->on_device() + kind * p.layout.bytes;
    const auto ints = [&](int64_t offset) { return reinterpret_cast<const int32_t*>(at + offset); };
    const TileArrays arrays{.num_seqs = b.num_seqs,
                            .q_indptr = b.on_device.q_indptr,
                            .kv_len = b.on_device.kv_len,
                            .page_indptr = b.on_device.page_indptr,
                            .page_slots = b.on_device.page_slots,
                            .tree_mask = b.tree_mask ? b.on_device.tree_mask : nullptr,
                            .causal = b.causal,
                            .request = ints(p.layout.request),
                            .q_tile = ints(p.layout.q_tile),
                            .kv_chunk = ints(p.layout.kv_chunk),
                            .valid = reinterpret_cast<const bool*>(at + p.layout.valid),
                            .chunk_tokens = ints(p.layout.chunk_tokens),
                            .o_indptr = ints(p.layout.o_indptr),
                            .blocks = made.blocks,
                            .partial = made.split ? p.partial : nullptr,
                            .partial_lse = p.partial_lse,
                            .merge_indptr = ints(p.layout.merge_indptr),
                            .rows = ints(p.layout.rows),
                            .max_rows = made.max_rows};
    const TileKind instance = general             ? TileKind::kGeneral
                              : b.tree_mask       ? TileKind::kTree
                              : call.soft_cap > 0 ? TileKind::kSoftCap
                                                  : TileKind::kCausal;
    if (kv.dtype == DType::kF16) {
      const int64_t width = int64_t{call.q_heads} * kv.k_dim;
      launch_to_float16(stream, call.q, call.q_stride, p.float16_q, arrays.rows, made.max_rows,
                        width);
      call.q = p.float16_q;
      call.q_stride = width;
    }
    record(stream, "flashinfer_tiles", made, call);
    tile_launch(kv.k_dim, kv.dtype, instance)(call, arrays, made.tile);
    return kind;
  }

  static void record(device::Stream& stream, const char* name, const Schedule& made,
                     const LayerCall& call) {
    stream.record_launch(
        name, {static_cast<uint32_t>(made.blocks), 1, static_cast<uint32_t>(call.kv_heads)},
        {128, 1, 1}, {{"tile", made.tile}, {"split", made.split}, {"window", call.window}});
  }

  const Capabilities capabilities_ = flashinfer::capabilities();
  device::Device& device_;
};

}  // namespace

std::unique_ptr<Backend> create(device::Device& device) {
  return std::make_unique<FlashinferBackend>(device);
}

}  // namespace attune::attention::flashinfer
