// Attention of few query rows over many keys, which is bound by reading the keys: one warp keeps a
// ring of tiles of 64 keys and values on their way (TMA), eight warps multiply them.
//
// Keys are the rows of the tensor cores' products and queries (x heads of one KV head) their
// columns, so that up to 8 query rows cost half of what 16 do. A warp has 16 keys (or 32) of a tile
// and up to 16 query rows, with their own maxima, sums and outputs in registers (online softmax,
// arXiv:1805.02867). Up to 16 rows in all, four warps take a tile and the other four the next one.
// At the end of a chunk of keys the warps are merged through shared memory; if its rows' keys were
// cut into several chunks, whoever arrives last adds all of them up in their order.
//
// Who does what: CTA b begins with item b, then each takes the next from a counter, because a
// kernel of another stream may hold some multiprocessors. Results do not depend on it: where chunks
// begin and in which order they are added is the plan's.
//
// What may be read before pdl_wait(), and why. A kernel that has passed its wait knows that all
// kernels before it have ended, since each of them waited too. An attention launch triggers in
// every CTA after its wait. So a kernel that starts after it, however many launches later, and
// whoever of those between them triggers early, may read without waiting whatever was written
// before that attention launch: with `early`, which a step's second and later launches have, the
// plan's arrays and the keys of earlier steps. The step's own keys (the last q_len) and q may be
// the work of the kernel just before, so they are read after the wait; so are counters and partial
// results, which the launch before still uses.
#pragma once

#include "attention/backends/fa3/cuda/ptx.cuh"
#include "attention/backends/fa3/cuda/range.cuh"
#include "attention/backends/fa3/work.h"
#include "device/cuda/launch.cuh"

namespace attune::attention::fa3 {

inline constexpr int kConsumers = 256, kConsumerWarps = 8;
inline constexpr int kFinishers = 96;
inline constexpr int kDecodeThreads = kConsumers + 32 + kFinishers;  // with the loading warp
inline constexpr int kMostStages = 16;
inline constexpr int kMergedRows = 4;  // of a warp, at once

// Fixed by a kernel's template arguments. kMostRows: of an item, 8, 16, 32 or 64.
template <typename Kv_, int kDim_, int kMostRows>
struct DecodeShape {
  using Kv = Kv_;
  static constexpr int kDim = kDim_, kRows = kMostRows;
  static constexpr int kColumns = kRows == 8 ? 1 : 2;             // of 8 rows, of a warp
  static constexpr int kRowWarps = kRows <= 16 ? 1 : kRows / 16;  // side by side
  static constexpr int kTilesAtOnce = kRows <= 16 ? 2 : 1;        // by four warps each
  static constexpr int kKeyWarps = kConsumerWarps / kRowWarps / kTilesAtOnce;  // of a tile
  static constexpr int kWarpKeys = kTile / kKeyWarps;
  static constexpr int kReaders = kKeyWarps * kRowWarps;  // warps of a tile
  static constexpr bool kF8 = sizeof(Kv) == 1;
  // What is multiplied: bfloat16, or binary16 to which e4m3 is converted exactly.
  static constexpr bool kF16 = kF8 || std::is_same_v<Kv, __half>;
  // A tile of K (or V) lies page by page (of 64 keys at most), a page as `kParts` matrices of rows
  // of kRowBytes, swizzled.
  static constexpr int kRowBytes = kDim * sizeof(Kv) < 128 ? kDim * sizeof(Kv) : 128;
  static constexpr int kParts = kDim * sizeof(Kv) / kRowBytes;
  static constexpr int kTileBytes = kTile * kParts * kRowBytes;
  static constexpr int kQStride = kDim * 2 + 16;  // against bank conflicts, as the next
  static constexpr int kMergeStride = kDim + 4;
  static constexpr int kItems = kRows <= 16 ? 4 : 2;
};

// Where 16 bytes of a key lie in a tile.
template <typename S>
struct KeyRow {
  uint32_t parts[S::kParts];

  __device__ KeyRow(int key, int page_shift) {
    const int shift = min(page_shift, 6), rows = 1 << shift;
#pragma unroll
    for (int p = 0; p < S::kParts; ++p)
      parts[p] = (((key >> shift) * S::kParts + p) * rows + (key & (rows - 1))) * S::kRowBytes;
  }
  // The copy engine exchanges pieces of 16 bytes by the address bits above 128 bytes.
  __device__ uint32_t piece(int i) const {
    constexpr int kPieces = S::kRowBytes / 16;
    const uint32_t at = parts[i / kPieces];
    return at + ((i % kPieces ^ (at >> 7 & (kPieces - 1))) << 4);
  }
};

struct Item {
  int32_t words[kChunkWords];  // Chunk's, with begin and end as the layer's window leaves them
  int32_t head;                // -1: there is nothing more to do
};

template <typename S, int kStages>
struct DecodeShared {
  alignas(1024) char tiles[kStages][2][S::kTileBytes];  // K, V
  alignas(16) char q[S::kItems][S::kRows * S::kQStride];
  alignas(16) float out[kConsumerWarps][kMergedRows][S::kMergeStride];
  float top[kConsumerWarps][kMergedRows], sum[kConsumerWarps][kMergedRows];
  Item items[S::kItems];
  // Of tiles, and of items: what they are, and q.
  uint64_t full[kStages][2], empty[kStages][2], item_full[S::kItems], item_empty[S::kItems];
  // Of items: partial results are written.
  uint64_t item_done[S::kItems];
  int32_t finished[S::kItems];  // whether the multiplying warps finished it themselves
  int32_t last[2];              // whether this CTA arrived last, of either kind of warps
};

template <typename S, int kStages>
class Producer {
 public:
  using Shared = DecodeShared<S, kStages>;
  __device__ Producer(const DecodeArgs& a, const CUtensorMap* k, const CUtensorMap* v, Shared& sm)
      : a_(a), maps_{k, v}, sm_(sm), lane_(threadIdx.x % 32), waited_(!a.early) {}

  __device__ void run() {
    if (waited_) wait_before();
    int item = blockIdx.x;
    const int heads = a_.heads;
    items_ = __ldcg(a_.work.num_chunks) * heads;
    while (item < items_) {
      const Chunk* chunk = a_.work.chunks + item / heads;
      load(chunk, item % heads);
      item = next_item();
    }
    if (!waited_) wait_before();
    barrier_wait(&sm_.item_empty[place_], place_parity_);
    if (lane_ != 0) return;
    sm_.items[place_].head = -1;
    barrier_arrive(&sm_.item_full[place_]);
  }

 private:
  __device__ void wait_before() {
    device::pdl_wait();
    device::pdl_trigger();
    waited_ = true;
  }

  // What comes of it is read in next_item(), when it has come.
  __device__ void take_next() {
    if (lane_ == 0 && items_ > static_cast<int>(gridDim.x)) taken_ = atomicAdd(a_.taken, 1);
  }
  __device__ int next_item() {
    const int grid = gridDim.x;
    if (items_ <= grid) return items_;
    // The counter's last reader puts it back: every CTA takes once for each of its items.
    if (lane_ == 0 && taken_ == items_ - 1) *a_.taken = 0;
    return __shfl_sync(0xffffffff, grid + taken_, 0);
  }

  __device__ void load(const Chunk* chunk, int head) {
    int word = lane_ < kChunkWords ? __ldcg(reinterpret_cast<const int*>(chunk) + lane_) : 0;
    ids_ = {__ldcg(chunk->pages + lane_), __ldcg(chunk->pages + 32 + lane_)};
    const auto get = [&](int i) { return __shfl_sync(0xffffffff, word, i); };
    const BlockRows rows{
        get(1), get(2), get(3), get(4), a_.group, a_.causal, a_.at.tree_mask != nullptr};
    q_start_ = get(0);
    const KeyRange seen = rows.seen(a_.layer.window);
    const int planned = get(5);
    int begin = max(planned, seen.begin), end = min(get(6), seen.end);
    if (begin >= end) begin = end = 0;
    page_start_ = get(7);
    if (lane_ == 5) word = begin;
    if (lane_ == 6) word = end;
    barrier_wait(&sm_.item_empty[place_], place_parity_);
    if (lane_ < kChunkWords) sm_.items[place_].words[lane_] = word;
    if (lane_ == kChunkWords) sm_.items[place_].head = head;
    __syncwarp();
    if (lane_ == 0) barrier_expect(&sm_.item_full[place_], rows.rows * S::kDim * 2);
    __syncwarp();
    bool begun = false;
    if (begin < end) begun = load_tiles(rows, head, begin, end, planned);
    if (!waited_) wait_before();
    if (!begun) begin_item(rows, head);
    if (++place_ == S::kItems) place_ = 0, place_parity_ ^= 1;
  }

  // Whether the item's queries are on their way too.
  __device__ bool load_tiles(const BlockRows& rows, int head, int begin, int end, int planned) {
    const int start = begin & ~(kTile - 1), old = rows.prefix(), kv_head = head / a_.share;
    const int last_entry = (end - 1) >> a_.page_shift;
    entry_ = start >> a_.page_shift;
    if (start != (planned & ~(kTile - 1))) ids_ = look_up(entry_, last_entry);
    next_ids_ = look_up(entry_ + kChunkPages, last_entry);
    bool begun = false;
    int tiles = 0;
    for (int key = start; key < end; key += kTile, ++tiles) {
      if (!waited_ && (tiles == kStages || key + kTile > old)) wait_before();
      if (waited_ && !begun) begin_item(rows, head), begun = true;
      if ((key >> a_.page_shift) >= entry_ + kChunkPages) {
        entry_ += kChunkPages;
        ids_ = next_ids_;
        next_ids_ = look_up(entry_ + kChunkPages, last_entry);
      }
      for (int part = 0; part < 2; ++part) {
        barrier_wait(&sm_.empty[stage_][part], parity_);
        if (lane_ == 0) barrier_expect(&sm_.full[stage_][part], tile_bytes(key, begin, end));
        __syncwarp();
        copy_tile(part, key, begin, end, kv_head);
      }
      if (++stage_ == kStages) stage_ = 0, parity_ ^= 1;
    }
    return begun;
  }

  // Slots of 64 pages, two of each lane.
  struct Ids {
    int low, high;
  };
  __device__ Ids look_up(int entry, int last) const {
    if (entry > last) return {0, 0};
    const int* slots = a_.at.page_slots + page_start_;
    return {slots[min(entry + lane_, last)], slots[min(entry + 32 + lane_, last)]};
  }
  // Of page `entry`, each lane its own; clamped to the padding slot.
  __device__ int slot_of(int entry) const {
    const int i = entry - entry_;
    const int low = __shfl_sync(0xffffffff, ids_.low, i & 31);
    const int high = __shfl_sync(0xffffffff, ids_.high, i & 31);
    const int slot = i < 32 ? low : high;
    return static_cast<uint32_t>(slot) < static_cast<uint32_t>(a_.num_slots) ? slot : 0;
  }

  // Queries, one copy for each row.
  __device__ void begin_item(const BlockRows& rows, int head) {
    const char* q = static_cast<const char*>(a_.io.q);
    for (int row = lane_; row < rows.rows; row += 32) {
      const int at = rows.first_row + row, token = q_start_ + at / rows.group;
      const int64_t from =
          token * a_.io.q_stride + (int64_t{head} * rows.group + at % rows.group) * S::kDim;
      copy_row(sm_.q[place_] + row * S::kQStride, q + from * 2, S::kDim * 2,
               &sm_.item_full[place_]);
    }
    take_next();
  }

  // Pages [first, end) of a tile, as far as some key of [begin, end) lies in them.
  __device__ KeyRange pages_of(int key, int begin, int end) const {
    if (a_.page_size >= kTile) return {0, 1};
    const int last = min(kTile, end - key) - 1;
    return {max(0, begin - key) >> a_.page_shift, (last >> a_.page_shift) + 1};
  }
  __device__ uint32_t tile_bytes(int key, int begin, int end) const {
    const KeyRange pages = pages_of(key, begin, end);
    return (pages.end - pages.begin) * min(a_.page_size, kTile) * S::kRowBytes * S::kParts;
  }
  __device__ void copy_tile(int part, int key, int begin, int end, int kv_head) {
    const KeyRange pages = pages_of(key, begin, end);
    const int shift = min(a_.page_shift, 6), bytes = S::kRowBytes * S::kParts << shift;
    for (int first = 0; first < kTile >> shift; first += 32) {
      const int page = first + lane_, slot = slot_of((key >> a_.page_shift) + page);
      if (page >= pages.begin && page < pages.end)
        copy_page_box(sm_.tiles[stage_][part] + page * bytes, maps_[part], key & (a_.page_size - 1),
                      kv_head, slot, &sm_.full[stage_][part]);
    }
  }

  const DecodeArgs& a_;
  const CUtensorMap* maps_[2];
  Shared& sm_;
  const int lane_;
  bool waited_;
  int items_ = 0, taken_ = 0;
  int stage_ = 0, place_ = 0;
  uint32_t parity_ = 1, place_parity_ = 1;
  int q_start_ = 0, page_start_ = 0;
  int entry_ = 0;  // ids_ are of the pages from this one on
  Ids ids_{}, next_ids_{};
};

}  // namespace attune::attention::fa3
