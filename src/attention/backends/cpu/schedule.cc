#include "attention/backends/cpu/schedule.h"

#include <algorithm>

namespace attune::attention::cpu {
namespace {

// A tile is split when it costs more than this part of what a thread's fair share is.
constexpr int64_t kSharesPerThread = 4;
// Enough for one sequence of MLA's 128 heads over 60k keys, and for four times that on 64 threads.
// What has no room is not split.
constexpr int64_t kMaxPartialBytes = int64_t{32} << 20, kMaxPartialBytesPerThread = 2 << 20;

int64_t cost(const Tile& t) {
  return int64_t{t.num_q} * t.num_heads * (t.kv_len + kBlock);
}

// Keys that the tile's last query sees, without windows, which belong to the layer.
int32_t keys_of(const Tile& t) {
  if (t.tree_mask || !t.causal) return t.kv_len;
  return std::max(0, t.kv_len - t.q_len + t.first_q + t.num_q);
}

int32_t divide_up(int32_t n, int32_t by) {
  return (n + by - 1) / by;
}

// num_splits parts of whole blocks, about equal; untuned, split points at absolute positions.
int32_t split_keys(int32_t kv_len, const Tuning& tuning) {
  if (tuning.num_splits <= 0) return kSplit;
  return std::max(1, divide_up(divide_up(kv_len, tuning.num_splits), kBlock)) * kBlock;
}

// Query heads of a tile: as many of a KV head's as there is room for, in parts of one size; its
// queries fill the rest of the room.
int32_t heads_per_tile(const Limits& limits) {
  const int32_t group = limits.q_heads / limits.kv_heads;
  if (limits.tuning.pack_gqa == Toggle::kOff) return 1;
  return divide_up(group, divide_up(group, kMaxRows));
}

void add_tiles(const Batch& b, const Limits& limits, int32_t s, std::vector<Tile>* tiles) {
  const int32_t q_len = b.q_indptr[s + 1] - b.q_indptr[s];
  const int32_t group = limits.q_heads / limits.kv_heads;
  const bool rows = reads_rows(b.path);
  const int32_t heads = heads_per_tile(limits);
  const int32_t queries = std::max(1, kMaxRows / heads);
  for (int32_t q = 0; q < q_len; q += queries) {
    for (int32_t kv_head = 0; kv_head < limits.kv_heads; ++kv_head) {
      for (int32_t h = 0; h < group; h += heads)
        tiles->push_back({.first_token = b.q_indptr[s] + q,
                          .num_q = std::min(queries, q_len - q),
                          .first_q = q,
                          .kv_len = b.kv_len[s],
                          .q_len = q_len,
                          .kv_head = kv_head,
                          .first_head = kv_head * group + h,
                          .num_heads = std::min(heads, group - h),
                          .slots = rows ? nullptr : b.page_slots + b.page_indptr[s],
                          .first_row = rows ? b.kv_start[s] : 0,
                          .causal = b.causal,
                          .tree_mask = b.tree_mask ? b.tree_mask + b.q_indptr[s] : nullptr,
                          .split_keys = split_keys(b.kv_len[s], limits.tuning)});
    }
  }
}

}  // namespace

int64_t partial_area_floats(const Limits& limits, const Kernels& kernels) {
  const int64_t tiles = kSharesPerThread * limits.threads;
  const int64_t splits = limits.tuning.num_splits > 0 ? limits.tuning.num_splits
                                                      : divide_up(limits.max_kv_len, kSplit);
  const int64_t all = tiles * splits * kernels.partial_floats(kMaxRows, limits.v_dim);
  const int64_t most = std::max(kMaxPartialBytes, kMaxPartialBytesPerThread * limits.threads);
  return std::min<int64_t>(all, most / 4);
}

void make_schedule(const Batch& batch, const Limits& limits, const Kernels& kernels,
                   Schedule* out) {
  out->tiles.clear();
  out->items.clear();
  out->macs = 0;
  for (int32_t s = 0; s < batch.num_seqs; ++s) add_tiles(batch, limits, s, &out->tiles);
  out->split_of.assign(out->tiles.size(), {});
  int64_t total = 0;
  for (const Tile& t : out->tiles) total += cost(t);
  out->macs = total * (limits.qk_dim + limits.v_dim);
  const int64_t share = total / (kSharesPerThread * limits.threads);
  int64_t room = partial_area_floats(limits, kernels), used = 0;
  for (size_t i = 0; i < out->tiles.size(); ++i) {
    const Tile& t = out->tiles[i];
    const int32_t splits = t.num_splits();
    const int64_t floats = splits * kernels.partial_floats(t.num_q * t.num_heads, limits.v_dim);
    if (limits.threads == 1 || splits < 2 || cost(t) <= share || used + floats > room) {
      out->items.push_back({static_cast<int32_t>(i), -1});
      continue;
    }
    out->split_of[i] = {used, splits};
    used += floats;
    for (int32_t k = 0; k < splits; ++k) out->items.push_back({static_cast<int32_t>(i), k});
  }
  const auto weight = [&](const WorkItem& item) {
    const Tile& t = out->tiles[item.tile];
    const int64_t keys = item.split < 0 ? keys_of(t) : std::min(t.split_keys, t.kv_len);
    return keys * t.num_q * t.num_heads;
  };
  // Not stable_sort, which allocates.
  std::sort(out->items.begin(), out->items.end(), [&](const WorkItem& a, const WorkItem& b) {
    const int64_t wa = weight(a), wb = weight(b);
    if (wa != wb) return wa > wb;
    return a.tile != b.tile ? a.tile < b.tile : a.split < b.split;
  });
}

}  // namespace attune::attention::cpu
