#include "attention/backends/flashinfer/hopper_schedule.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace attune::attention::flashinfer {
namespace {

int32_t q_len(const Batch& b, int32_t s) {
  return b.q_indptr[s + 1] - b.q_indptr[s];
}

}  // namespace

bool HopperScheduler::suits(const Batch& b) const {
  if (b.num_tokens < int64_t{b.num_seqs} * tile_ / 2) return false;
  int64_t tiles = 0;
  for (int32_t s = 0; s < b.num_seqs; ++s) tiles += (q_len(b, s) + tile_ - 1) / tile_;
  return tiles * limits_.q_heads >= limits_.multiprocessors;
}

int64_t HopperScheduler::max_elements() const {
  const int64_t tiles = limits_.max_tokens / tile_ + 1 + int64_t{limits_.max_seqs};
  return limits_.multiprocessors + 1 + kNumHopperArrays * tiles * limits_.q_heads;
}

HopperSchedule HopperScheduler::make(const Batch& b, int32_t* to) {
  tiles_.clear();
  for (int32_t s = 0; s < b.num_seqs; ++s)
    for (int32_t t = (q_len(b, s) + tile_ - 1) / tile_ - 1; t >= 0; --t) {
      const int32_t last = std::min((t + 1) * tile_, q_len(b, s));
      tiles_.push_back({s, t, std::max(b.kv_len[s] - q_len(b, s) + last, 0)});
    }
  std::sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
    return std::tie(b.keys, a.seq, b.index) < std::tie(a.keys, b.seq, a.index);
  });

  blocks_.reset(limits_.multiprocessors);
  works_.clear();
  // The heads of a tile one after another: those of a group read the same keys at about one time.
  for (size_t t = 0; t < tiles_.size(); ++t)
    for (int32_t head = 0; head < limits_.q_heads; ++head)
      works_.push_back({blocks_.give(2 * tile_ + tiles_[t].keys), static_cast<int32_t>(t), head});

  HopperSchedule made;
  made.used = limits_.multiprocessors + 1;
  for (int64_t& at : made.arrays) {
    at = made.used;
    made.used += static_cast<int64_t>(works_.size());
  }
  ATTUNE_CHECK(made.used <= max_elements());
  int32_t* indptr = to + made.work_indptr;
  std::fill_n(indptr, limits_.multiprocessors + 1, 0);
  for (const Work& work : works_) ++indptr[work.block + 1];
  for (int32_t i = 0; i < limits_.multiprocessors; ++i) indptr[i + 1] += indptr[i];
  // Each block's place moves on as it is filled, and is set back after.
  for (const Work& work : works_) {
    const int64_t at = indptr[work.block]++;
    const Tile& tile = tiles_[work.tile];
    to[made.arrays[kQTile] + at] = tile.index;
    to[made.arrays[kHead] + at] = work.head;
    to[made.arrays[kQIndptr] + at] = b.q_indptr[tile.seq];
    to[made.arrays[kKvIndptr] + at] = b.page_indptr[tile.seq];
    to[made.arrays[kQLen] + at] = q_len(b, tile.seq);
    to[made.arrays[kKvLen] + at] = b.kv_len[tile.seq];
  }
  for (int32_t i = limits_.multiprocessors; i > 0; --i) indptr[i] = indptr[i - 1];
  indptr[0] = 0;
  return made;
}

}  // namespace attune::attention::flashinfer
