#include "attention/backends/fa3/prefill.h"

#include <algorithm>
#include <bit>

#include "attention/backends/fa3/base2.h"
#include "attention/backends/fa3/prefill_launches.h"
#include "base/check.h"

namespace attune::attention::fa3 {
namespace {

using tensor::DType;

// Heads that share a tile's tokens: as many of a group as a warpgroup has rows for.
int32_t tile_heads(const Limits& l) {
  if (l.tuning.pack_gqa == Toggle::kOff) return 1;
  const int32_t group = l.q_heads / l.kv_heads;
  for (int32_t heads = std::min(group, kGroupRows); heads > 1; --heads)
    if (group % heads == 0) return heads;
  return 1;
}

// What a plan has room for.
struct Sizes {
  int32_t heads = 0, block_tokens = 0;
  int32_t max_items = 0;  // of split keys: blocks or parts, times heads
  int64_t max_blocks = 0;

  int64_t part_floats(int32_t v_dim) const {
    return int64_t{max_items} * kPrefillRows * (v_dim + 8);
  }
  int64_t blocks_at() const {
    return (int64_t{max_items} * 8 + 31) / 16 * 16;
  }  // arrivals, counters
  int64_t sequences_at() const {
    return blocks_at() + max_blocks * static_cast<int64_t>(sizeof(PrefillBlock));
  }
};

Sizes sizes_of(const Limits& l, int32_t ctas) {
  const int32_t shared = tile_heads(l);
  Sizes s{.heads = l.q_heads / shared, .block_tokens = 2 * (kGroupRows / shared)};
  s.max_items = 3 * std::max(ctas, s.heads);
  const int64_t blocks = l.max_tokens / s.block_tokens + int64_t{l.max_seqs};
  s.max_blocks = blocks * s.heads + s.max_items;
  return s;
}

bool rows_only(const Limits& l) {
  return l.num_slots == 1;
}

}  // namespace

bool Prefill::has_kernel(const Limits& l) {
  const bool pages =
      rows_only(l) || kPrefillKeys % l.page_size == 0 || l.page_size % kPrefillKeys == 0;
  return pages && l.kv_heads > 0 && l.q_heads % l.kv_heads == 0 &&
         has_prefill_kernel(DType::kBF16, l.qk_dim, l.v_dim);
}

int64_t Prefill::workspace_bytes(const Limits& l, const device::DeviceInfo& info) {
  return sizes_of(l, info.multiprocessors).part_floats(l.v_dim) * 4;
}

Prefill::Prefill(device::Device& device, const Limits& limits, void* workspace)
    : limits_(limits),
      ctas_(device.info().multiprocessors),
      near_bytes_(device.info().l2_bytes / 4),
      tile_heads_(tile_heads(limits)),
      tile_tokens_(kGroupRows / tile_heads_),
      part_sums_(static_cast<float*>(workspace)) {
  ATTUNE_CHECK(has_kernel(limits));
  const Sizes s = sizes_of(limits, ctas_);
  heads_ = s.heads;
  block_tokens_ = s.block_tokens;
  max_items_ = s.max_items;
  part_scales_ = part_sums_ + int64_t{s.max_items} * kPrefillRows * limits.v_dim;
  auto memory = device.allocate(s.sequences_at() + int64_t{limits.max_seqs} * 8, "a prefill plan");
  status_ = memory.status();
  if (!memory.ok()) return;
  memory_ = std::move(*memory);
  char* at = memory_.as<char>();
  blocks_ = reinterpret_cast<PrefillBlock*>(at + s.blocks_at());
  counters_ = reinterpret_cast<PrefillCounters*>(blocks_) - 1;
  scratch_ = reinterpret_cast<int32_t*>(at + s.sequences_at());
}

void Prefill::plan_on(const Batch& batch, device::Stream& stream) const {
  // As of two bytes an element: sequences of e4m3 are grouped by half of what fits, which measured
  // the same as all of it.
  const int64_t tile_bytes = int64_t{kPrefillKeys} * (limits_.qk_dim + limits_.v_dim) * 2;
  const int64_t near = near_bytes_ / tile_bytes * heads_ / limits_.kv_heads;
  const bool rows = reads_rows(batch.path);
  PrefillPlanParams p;
  p.q_indptr = batch.on_device.q_indptr;
  p.kv_len = batch.on_device.kv_len;
  p.starts = rows ? batch.on_device.kv_start : batch.on_device.page_indptr;
  p.num_seqs = batch.num_seqs;
  p.heads = heads_;
  p.block_tokens = block_tokens_;
  p.causal = batch.causal;
  p.near_tiles = static_cast<int32_t>(std::clamp<int64_t>(near, 1, 1 << 30));
  p.ctas = ctas_;
  p.num_splits = batch.deterministic ? 1 : limits_.tuning.num_splits;
  p.max_items = max_items_;
  p.groups = scratch_;
  p.block_starts = scratch_ + limits_.max_seqs;
  p.blocks = blocks_;
  p.counters = counters_;
  launch_prefill_plan(stream, p);
}

void Prefill::run(const Batch& batch, const LayerParams& layer, const kv::PagedKvView& kv,
                  const Io& io, device::Stream& stream) const {
  ATTUNE_CHECK(layer.q_heads == limits_.q_heads && layer.kv_heads == limits_.kv_heads);
  ATTUNE_CHECK(kv.k_dim == limits_.qk_dim && kv.v_dim == limits_.v_dim);
  const bool rows = reads_rows(batch.path);
  ATTUNE_CHECK(has_prefill_kernel(kv.dtype, kv.k_dim, kv.v_dim));
  ATTUNE_CHECK(kv.dtype != DType::kF8E4M3 ||
               (!rows && std::has_single_bit(static_cast<uint32_t>(kv.page_size))));
  ATTUNE_CHECK(io.q_dtype == DType::kBF16 && io.out_dtype == DType::kBF16 && !batch.tree_mask);
  PrefillCall call{.kv = kv,
                   .q = io.q,
                   .q_stride = io.q_stride,
                   .tokens = batch.num_tokens,
                   .ctas = ctas_,
                   .params = {}};
  PrefillParams& p = call.params;
  p.blocks = blocks_;
  p.counters = counters_;
  p.page_slots = rows ? nullptr : batch.on_device.page_slots;
  p.out = io.out;
  p.lse = io.lse;
  p.sinks = layer.sinks;
  p.part_sums = part_sums_;
  p.part_scales = part_scales_;
  p.arrivals = memory_.as<uint32_t>();
  p.out_stride = io.out_stride;
  p.q_heads = layer.q_heads;
  p.group = layer.q_heads / layer.kv_heads;
  p.tile_heads = tile_heads_;
  p.tile_tokens = tile_tokens_;
  p.token_factor = prefill_token_factor(tile_heads_);
  p.num_slots = kv.num_slots;
  p.page_size = kv.page_size;
  p.box_rows = rows ? kPrefillKeys : std::min(kv.page_size, kPrefillKeys);
  p.k = static_cast<const char*>(kv.base);
  p.v = p.k + kv.v_offset;
  p.page_stride = static_cast<uint32_t>(kv.page_stride);
  p.k_head_stride = kv.k_head_stride;
  p.k_token_stride = kv.k_token_stride;
  p.v_head_stride = kv.v_head_stride;
  p.v_token_stride = kv.v_token_stride;
  p.window = layer.window;
  p.causal = batch.causal;
  const bool capped = layer.soft_cap > 0;
  p.to_cap = capped ? layer.scale / layer.soft_cap : 0;
  p.to_log2 = (capped ? layer.soft_cap : layer.scale) * kLog2E;
  launch_prefill(stream, call);
}

}  // namespace attune::attention::fa3
