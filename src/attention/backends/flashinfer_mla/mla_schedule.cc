#include "attention/backends/flashinfer_mla/mla_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace attune::attention::flashinfer_mla {
namespace {

constexpr int32_t kBlockRows = 64;  // of a tile, in one block
constexpr int32_t kMaxCluster = 2;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Keys of a chunk, for so many to a cluster: FlashInfer's steps.
int32_t chunk_keys(int64_t keys) {
  if (keys <= 8) return 32;
  if (keys <= 16) return 64;
  if (keys <= 32) return 128;
  if (keys <= 64) return 192;
  return static_cast<int32_t>(ceil_div(keys, 256) * 256);
}

bool fixed_grid(const Batch& b, const ScheduleLimits& l) {
  return b.phase != Phase::kPrefill &&
         int64_t{b.num_seqs} * std::max(b.max_q_len, 1) <= l.max_tokens;
}

// The keys that a tile's last query sees.
int32_t keys_of_tile(int32_t q_len, int32_t kv_len, int32_t tile, int32_t tiles, int32_t rows,
                     int32_t heads) {
  if (tile + 1 == tiles) return kv_len;
  const int64_t end = kv_len - q_len + ceil_div(int64_t{tile + 1} * rows, heads);
  return static_cast<int32_t>(std::clamp<int64_t>(end, 0, kv_len));
}

}  // namespace

int64_t max_schedule_elements(const ScheduleLimits& l) {
  // A sequence is two parts at most; the chunks of all tiles are fewer than tiles and clusters.
  const int64_t works = ceil_div(int64_t{l.max_tokens} * l.heads, kBlockRows) +
                        2 * int64_t{l.max_seqs} + l.multiprocessors;
  return (kNumMergeArrays + 1) * int64_t{l.multiprocessors} + 2 + kNumWorkArrays * works;
}

int64_t max_partial_rows(const ScheduleLimits& l) {
  return 2 * int64_t{l.multiprocessors} * kBlockRows;
}

template <typename Fn>
void Scheduler::for_each_tile(const Batch& b, Fn fn) const {
  const auto tiles_of = [&](const Part& part) {
    const auto tiles =
        static_cast<int32_t>(ceil_div(int64_t{part.q_len} * limits_.heads, tile_rows_));
    for (int32_t tile = tiles - 1; tile >= 0; --tile)
      fn(part, tile, keys_of_tile(part.q_len, part.kv_len, tile, tiles, tile_rows_, limits_.heads));
  };
  for (int32_t s = 0; s < b.num_seqs; ++s) {
    Part part{b.q_indptr[s], b.page_indptr[s], b.q_indptr[s + 1] - b.q_indptr[s], b.kv_len[s]};
    // The kernels count on every query of a part seeing a key, or none.
    if (const int32_t blind = part.q_len - part.kv_len; blind > 0) {
      tiles_of({part.q_indptr, part.kv_indptr, blind, 0});
      part.q_indptr += blind;
      part.q_len -= blind;
    }
    if (part.q_len > 0) tiles_of(part);
  }
}

void Scheduler::add_tile(const Part& part, int32_t tile, int32_t keys, int32_t* to) {
  const int32_t first = tile * tile_rows_;
  const int32_t rows = std::min(tile_rows_, part.q_len * limits_.heads - first);
  const bool split = keys > chunk_;
  if (split) {
    // Blocks to share the merge, no more than there are clusters for these keys: so all tiles'
    // together are no more than there are blocks.
    const int32_t shares =
        std::max(static_cast<int32_t>(int64_t{keys} * made_.cluster / chunk_), 1);
    const auto each = static_cast<int32_t>(ceil_div(rows, shares));
    for (int32_t at = 0; at < rows; at += each) {
      ATTUNE_CHECK(merges_ < limits_.multiprocessors);
      const int32_t row = part.q_indptr * limits_.heads + first;
      to[made_.merge[kRowStart] + merges_] = row + at;
      to[made_.merge[kRowEnd] + merges_] = row + std::min(at + each, rows);
      to[made_.merge[kPartialStart] + merges_] = partial_rows_ + at;
      to[made_.merge[kPartialEnd] + merges_] =
          partial_rows_ + static_cast<int32_t>(ceil_div(keys, chunk_)) * rows;
      to[made_.merge[kPartialStride] + merges_] = rows;
      ++merges_;
    }
  }
  int32_t begin = 0;
  do {
    const int32_t end = std::min(begin + chunk_, keys);
    works_.push_back({clusters_.give(2 * tile_rows_ + end - begin),
                      {part.q_indptr, part.kv_indptr, split ? partial_rows_ : -1, part.q_len,
                       part.kv_len, first, begin, end}});
    if (split) partial_rows_ += rows;
    begin = end;
  } while (begin < keys);
}

Schedule Scheduler::make(const Batch& b, int32_t* to) {
  ATTUNE_CHECK(b.num_seqs > 0 && b.causal);
  const bool fixed = fixed_grid(b, limits_);
  const int64_t rows = fixed ? int64_t{std::max(b.max_q_len, 1)} * limits_.heads
                             : int64_t{b.num_tokens} * limits_.heads / b.num_seqs;
  made_ = {};
  made_.cluster = rows > kBlockRows ? kMaxCluster : 1;
  made_.clusters = limits_.multiprocessors / made_.cluster;
  tile_rows_ = made_.cluster * kBlockRows;

  int64_t keys = 0, tiles = 0;
  for_each_tile(b, [&](const Part&, int32_t, int32_t tile_keys) {
    keys += tile_keys;
    ++tiles;
  });
  chunk_ = chunk_keys(std::max<int64_t>(ceil_div(keys, made_.clusters), 1));

  int64_t end = 0;
  const auto take = [&](int64_t elements) {
    const int64_t at = end;
    end += elements;
    return at;
  };
  made_.rows = take(1);
  made_.work_indptr = take(limits_.multiprocessors + 1);
  for (int64_t& at : made_.merge) at = take(limits_.multiprocessors);
  std::fill_n(to, end, 0);
  to[made_.rows] = b.num_tokens;
  made_.max_rows = fixed ? b.num_seqs * std::max(b.max_q_len, 1) : b.num_tokens;

  clusters_.reset(made_.clusters);
  works_.clear();
  merges_ = partial_rows_ = 0;
  for_each_tile(b, [&](const Part& part, int32_t tile, int32_t tile_keys) {
    add_tile(part, tile, tile_keys, to);
  });
  ATTUNE_CHECK(partial_rows_ <= max_partial_rows(limits_));

  const auto count = static_cast<int64_t>(works_.size());
  made_.capacity = static_cast<int32_t>(count);
  if (fixed)
    made_.capacity =
        static_cast<int32_t>(b.num_seqs * (ceil_div(rows, tile_rows_) + 1) + made_.clusters);
  ATTUNE_CHECK(count <= made_.capacity);
  for (int64_t& at : made_.work) at = take(made_.capacity);
  made_.used = end;
  ATTUNE_CHECK(end <= max_schedule_elements(limits_));

  int32_t* indptr = to + made_.work_indptr;
  for (const Work& work : works_) ++indptr[work.cluster + 1];
  for (int32_t i = 0; i < made_.clusters; ++i) indptr[i + 1] += indptr[i];
  // Each cluster's place moves on as it is filled, and is set back after.
  for (const Work& work : works_) {
    const int32_t at = indptr[work.cluster]++;
    for (int a = 0; a < kNumWorkArrays; ++a) to[made_.work[a] + at] = work.values[a];
  }
  for (int32_t i = made_.clusters; i > 0; --i) indptr[i] = indptr[i - 1];
  indptr[0] = 0;
  return made_;
}

}  // namespace attune::attention::flashinfer_mla
