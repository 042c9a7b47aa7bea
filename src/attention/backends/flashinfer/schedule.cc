#include "attention/backends/flashinfer/schedule.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace attune::attention::flashinfer {
namespace {

constexpr int32_t kMinChunkTokens = 128;
// Blocks of the tensor-core kernel that a multiprocessor holds.
constexpr int32_t kTileBlocksPerSm = 2;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The smallest tile that holds `rows`, or the largest.
int32_t tile_for(int64_t rows, const ScheduleLimits& l) {
  return rows <= 16 ? 16 : rows <= 64 ? 64 : l.max_tile;
}

int32_t tile_blocks(const ScheduleLimits& l) {
  return std::max(kTileBlocksPerSm * l.multiprocessors / l.kv_heads, 1);
}

int32_t row_blocks(const ScheduleLimits& l) {
  return std::max(l.row_blocks_per_sm * l.multiprocessors / l.kv_heads, 1);
}

int32_t q_len(const Batch& b, int32_t s) {
  return b.q_indptr[s + 1] - b.q_indptr[s];
}

int64_t pages_of(const Batch& b, int32_t s) {
  return ceil_div(b.kv_len[s], b.page_size);
}

// The arrays of one schedule in host memory.
struct Arrays {
  Arrays(const ScheduleLayout& layout, char* to)
      : max_blocks(layout.max_blocks),
        valid(reinterpret_cast<bool*>(to + layout.valid)),
        request(reinterpret_cast<int32_t*>(to + layout.request)),
        q_tile(reinterpret_cast<int32_t*>(to + layout.q_tile)),
        kv_chunk(reinterpret_cast<int32_t*>(to + layout.kv_chunk)),
        chunk_tokens(reinterpret_cast<int32_t*>(to + layout.chunk_tokens)),
        rows(reinterpret_cast<int32_t*>(to + layout.rows)),
        o_indptr(reinterpret_cast<int32_t*>(to + layout.o_indptr)),
        row_kv_len(reinterpret_cast<int32_t*>(to + layout.row_kv_len)),
        merge_indptr(reinterpret_cast<int32_t*>(to + layout.merge_indptr)) {}

  void add(int32_t s, int32_t tile, int32_t chunk) {
    ATTUNE_CHECK(used < max_blocks);
    request[used] = s;
    q_tile[used] = tile;
    kv_chunk[used++] = chunk;
  }
  void set_chunk(int64_t pages, int32_t page_size) {
    constexpr int64_t kAll = std::numeric_limits<int32_t>::max();
    *chunk_tokens = static_cast<int32_t>(std::min(pages * page_size, kAll));
  }
  void fill_valid(int32_t blocks) {
    ATTUNE_CHECK(used <= blocks && blocks <= max_blocks);
    std::fill_n(valid, used, true);
    std::fill(valid + used, valid + blocks, false);
    // What does not work is read all the same.
    std::fill(request + used, request + blocks, 0);
    std::fill(q_tile + used, q_tile + blocks, 0);
    std::fill(kv_chunk + used, kv_chunk + blocks, 0);
  }

  int32_t max_blocks, used = 0;
  bool* valid;
  int32_t *request, *q_tile, *kv_chunk, *chunk_tokens, *rows, *o_indptr, *row_kv_len, *merge_indptr;
};

// The shortest chunk, in pages, for which there are at most `capacity` blocks; the longest sequence
// if there is none. tiles(s): how often a sequence's keys are read.
template <typename Tiles>
int64_t chunk_pages(const Batch& b, int64_t capacity, Tiles tiles) {
  int64_t low = std::max(kMinChunkTokens / b.page_size, 1), high = 1;
  for (int32_t s = 0; s < b.num_seqs; ++s) high = std::max(high, pages_of(b, s));
  low = std::min(low, high);
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    int64_t blocks = 0;
    for (int32_t s = 0; s < b.num_seqs; ++s)
      blocks += tiles(s) * std::max<int64_t>(ceil_div(pages_of(b, s), middle), 1);
    if (blocks > capacity) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Whether what is launched may follow from the batch's size alone.
bool fixed_grid(const Batch& b, const ScheduleLimits& l) {
  return b.phase != Phase::kPrefill &&
         int64_t{b.num_seqs} * std::max(b.max_q_len, 1) <= l.max_tokens;
}

int32_t choose_tile(const Batch& b, const ScheduleLimits& l, bool fixed) {
  const int64_t group = l.group();
  if (fixed) return tile_for(std::max(b.max_q_len, 1) * group, l);
  return tile_for(b.num_tokens * group / b.num_seqs, l);
}

}  // namespace

ScheduleLayout schedule_layout(const ScheduleLimits& l) {
  ScheduleLayout at;
  // Tiles are of 64 rows and more, or fewer than three to a sequence (choose_tile).
  const int64_t tiles = int64_t{l.max_tokens} * l.group() / 64 + 3 * int64_t{l.max_seqs};
  at.max_blocks =
      static_cast<int32_t>(std::max({tiles, int64_t{tile_blocks(l)}, int64_t{row_blocks(l)}}) + 1);
  int64_t end = 0;
  const auto take = [&](int64_t* offset, int64_t bytes) {
    *offset = end;
    end += ceil_div(bytes, 16) * 16;
  };
  take(&at.valid, at.max_blocks);
  take(&at.request, 4 * int64_t{at.max_blocks});
  take(&at.q_tile, 4 * int64_t{at.max_blocks});
  take(&at.kv_chunk, 4 * int64_t{at.max_blocks});
  take(&at.chunk_tokens, 4);
  take(&at.rows, 4);
  take(&at.o_indptr, 4 * (int64_t{l.max_seqs} + 1));
  take(&at.row_kv_len, 4 * (int64_t{l.max_seqs} + 1));
  take(&at.merge_indptr, 4 * (int64_t{l.max_tokens} + 1));
  at.bytes = end;
  return at;
}

int64_t max_partial_rows(const ScheduleLimits& l) {
  // A split block holds a tile's rows, its tokens times the group.
  const int64_t of_tiles = ceil_div(int64_t{l.max_tile} * tile_blocks(l), l.group());
  return std::max<int64_t>(of_tiles, row_blocks(l));
}

Schedule schedule_tiles(const Batch& b, const ScheduleLimits& l, Split split,
                        const ScheduleLayout& layout, char* to) {
  Schedule made;
  Arrays a(layout, to);
  const bool fixed = fixed_grid(b, l);
  const int64_t group = l.group(), capacity = tile_blocks(l);
  made.tile = choose_tile(b, l, fixed);
  const auto tiles = [&](int32_t s) { return ceil_div(q_len(b, s) * group, made.tile); };
  int64_t most_tiles = int64_t{b.num_seqs} * ceil_div(std::max(b.max_q_len, 1) * group, made.tile);

  int64_t chunk = std::numeric_limits<int32_t>::max() / b.page_size;
  if (split == Split::kAuto && (!fixed || most_tiles < capacity)) {
    const int64_t pages = chunk_pages(b, capacity, tiles);
    int64_t longest = 1;
    for (int32_t s = 0; s < b.num_seqs; ++s) longest = std::max(longest, pages_of(b, s));
    made.split = fixed || pages < longest;
    if (made.split) chunk = pages;
  }
  a.set_chunk(chunk, b.page_size);
  int32_t row = 0;
  a.o_indptr[0] = a.merge_indptr[0] = 0;
  for (int32_t s = 0; s < b.num_seqs; ++s) {
    const auto chunks = static_cast<int32_t>(std::max<int64_t>(ceil_div(pages_of(b, s), chunk), 1));
    for (int32_t t = 0; t < tiles(s); ++t)
      for (int32_t c = 0; c < chunks; ++c) a.add(s, t, c);
    a.o_indptr[s + 1] = a.o_indptr[s] + q_len(b, s) * chunks;
    if (!made.split) continue;
    for (int32_t i = 0; i < q_len(b, s); ++i, ++row)
      a.merge_indptr[row + 1] = a.merge_indptr[row] + chunks;
  }
  // A block without rows: some block of a launch has to wait for what was launched before.
  if (a.used == 0) a.add(0, 0, 0);
  *a.rows = b.num_tokens;
  made.max_rows = fixed ? b.num_seqs * std::max(b.max_q_len, 1) : b.num_tokens;
  made.blocks = a.used;
  if (fixed)
    made.blocks = static_cast<int32_t>(made.split ? std::max(capacity, most_tiles) : most_tiles);
  a.fill_valid(made.blocks);
  return made;
}

Schedule schedule_rows(const Batch& b, const ScheduleLimits& l, const ScheduleLayout& layout,
                       char* to) {
  Schedule made;
  Arrays a(layout, to);
  const int64_t capacity = row_blocks(l);
  made.split = b.num_seqs < capacity;
  made.max_rows = b.num_seqs;
  made.blocks = made.split ? static_cast<int32_t>(capacity) : b.num_seqs;
  int64_t chunk = std::numeric_limits<int32_t>::max() / b.page_size;
  if (made.split) chunk = chunk_pages(b, capacity, [&](int32_t s) { return q_len(b, s); });
  a.set_chunk(chunk, b.page_size);
  int32_t row = 0;
  a.merge_indptr[0] = 0;
  for (int32_t s = 0; s < b.num_seqs; ++s) {
    if (q_len(b, s) == 0) continue;
    const auto chunks = static_cast<int32_t>(std::max<int64_t>(ceil_div(pages_of(b, s), chunk), 1));
    for (int32_t c = 0; c < chunks; ++c) a.add(row, 0, c);
    a.row_kv_len[row] = b.kv_len[s];
    a.o_indptr[row] = b.page_indptr[s];
    a.merge_indptr[row + 1] = a.merge_indptr[row] + chunks;
    ++row;
  }
  std::fill(a.row_kv_len + row, a.row_kv_len + b.num_seqs, 0);
  std::fill(a.o_indptr + row, a.o_indptr + b.num_seqs + 1, b.page_indptr[b.num_seqs]);
  *a.rows = b.num_tokens;
  a.fill_valid(made.blocks);
  return made;
}

}  // namespace attune::attention::flashinfer
