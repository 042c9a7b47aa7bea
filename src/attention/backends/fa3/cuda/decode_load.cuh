// Attention of few query rows over many keys, which is bound by reading the keys: a ring of tiles
// of keys and values is kept on its way, eight warps multiply them. Pages of 8 keys and more are
// copied whole by the copy engine (TMA), keys by one warp and values by another; of smaller ones,
// whose boxes would be too many, four warps gather 16 bytes at a time (cp.async) into the same
// places.
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
inline constexpr int kMostStages = 16;
inline constexpr int kMergedRows = 4;  // of a warp, at once

// Fixed by a kernel's template arguments. kMostRows: of an item, 8, 16, 32 or 64.
template <typename Kv_, int kDim_, int kMostRows, bool kGather_>
struct DecodeShape {
  using Kv = Kv_;
  static constexpr int kDim = kDim_, kRows = kMostRows;
  static constexpr bool kGather = kGather_;
  static constexpr int kLoaderWarps = kGather ? 4 : 2;
  static constexpr int kFinishers = kGather || kRows == 8 ? 128 : 64;  // the registers allow
  // Whether the warps that multiply get registers of the others', as 128 each do not suffice them.
  static constexpr bool kUneven = kGather && kRows > 8;
  static constexpr int kThreads = kConsumers + kLoaderWarps * 32 + kFinishers;
  static constexpr int kTile = decode_tile(kDim * sizeof(Kv), kRows);
  static constexpr int kColumns = kRows == 8 ? 1 : 2;             // of 8 rows, of a warp
  static constexpr int kRowWarps = kRows <= 16 ? 1 : kRows / 16;  // side by side
  static constexpr int kTilesAtOnce = kRows <= 16 ? 2 : 1;        // by four warps each
  static constexpr int kKeyWarps = kConsumerWarps / kRowWarps / kTilesAtOnce;  // of a tile
  static constexpr int kWarpKeys = kTile / kKeyWarps;
  static constexpr int kReaders = kKeyWarps * kRowWarps;  // warps of a tile
  static constexpr bool kF8 = sizeof(Kv) == 1;
  // What is multiplied: bfloat16, or binary16 to which e4m3 is converted exactly.
  static constexpr bool kF16 = kF8 || std::is_same_v<Kv, __half>;
  // A tile of K (or V) lies by units, which are pages or, where these are larger, 64 keys; a unit
  // is `kParts` matrices of rows of kRowBytes, swizzled.
  static constexpr int kRowBytes = kDim * sizeof(Kv) < 128 ? kDim * sizeof(Kv) : 128;
  static constexpr int kParts = kDim * sizeof(Kv) / kRowBytes;
  static constexpr int kKeyBytes = kParts * kRowBytes;
  static constexpr int kTileBytes = kTile * kKeyBytes;
  static constexpr int kQStride = kDim * 2 + 16;  // against bank conflicts, as the next
  static constexpr int kMergeStride = kDim + 4;
  // More of 16 rows and more would cost a stage of the ring.
  static constexpr int kItems = kRows == 8 ? 4 : kRows == 16 ? 3 : 2;

  static __device__ int unit_shift(const DecodeArgs& a) {
    return kGather ? kUnitShift : min(a.page_shift, kUnitShift);
  }
};

// Where 16 bytes of a key lie in a tile.
template <typename S>
class KeyRow {
 public:
  __device__ KeyRow(int key, int shift)
      : part_bytes_(S::kRowBytes << shift),
        first_((key >> shift) * S::kParts * part_bytes_ +
               (key & ((1 << shift) - 1)) * S::kRowBytes) {}

  // The copy engine exchanges pieces of 16 bytes by the address bits above 128 bytes.
  __device__ uint32_t piece(int i) const {
    constexpr int kPieces = S::kRowBytes / 16;
    const uint32_t at = first_ + i / kPieces * part_bytes_;
    return at + ((i % kPieces ^ (at >> 7 & (kPieces - 1))) << 4);
  }

 private:
  uint32_t part_bytes_, first_;
};

struct Item {
  Chunk chunk;   // with begin and end as the layer's window leaves them
  int32_t head;  // -1: there is nothing more to do
};
__device__ __forceinline__ BlockRows rows_of(const DecodeArgs& a, const Chunk& c) {
  return {c.q_len, c.kv_len, c.first_row, c.rows, a.group, a.causal, a.at.tree_mask != nullptr};
}
struct TokenHead {
  int64_t token;
  int head;
};
__device__ __forceinline__ TokenHead token_head(const DecodeArgs& a, const Item& item, int row) {
  const int at = item.chunk.first_row + row, query = divided(at, a.group);
  return {int64_t{item.chunk.q_start + query},
          item.head * a.group.size + at - query * a.group.size};
}

template <typename S, int kStages>
struct DecodeShared {
  alignas(1024) char tiles[kStages][2][S::kTileBytes];  // K, V
  alignas(16) char q[S::kItems][S::kRows * S::kQStride];
  alignas(16) float out[kConsumerWarps][kMergedRows][S::kMergeStride];
  float top[kConsumerWarps][kMergedRows], sum[kConsumerWarps][kMergedRows];
  Item items[S::kItems];
  uint64_t full[kStages][2], empty[kStages][2];
  // Of items: what it is; that and q; its partial results; nobody reads it any more.
  uint64_t item_known[S::kItems], item_full[S::kItems], item_done[S::kItems], item_empty[S::kItems];
  int32_t last;  // whether this CTA arrived last, for those who finish items

  __device__ void init() {
    for (int s = 0; s < kStages; ++s)
      for (int part = 0; part < 2; ++part) {
        // With kGather: the 32 lanes of the warp that copies, and for keys one of each other
        // loading warp.
        barrier_init(&full[s][part], !S::kGather ? 1 : part == 0 ? 31 + S::kLoaderWarps : 32);
        barrier_init(&empty[s][part], S::kReaders);
      }
    for (int i = 0; i < S::kItems; ++i) {
      barrier_init(&item_known[i]);
      barrier_init(&item_full[i]);
      barrier_init(&item_done[i], kConsumerWarps);
      // The loading warps but the leader, and those who end items.
      barrier_init(&item_empty[i], S::kLoaderWarps);
    }
    fence_barrier_init();
  }
};

// A loading warp's gathering: it copies a tile by itself, 16 bytes a lane, and the next warp the
// next tile. So a tile has 32 arrivals and not one of each thread.
template <typename S, int kStages>
class Gatherer {
 public:
  using Shared = DecodeShared<S, kStages>;
  __device__ Gatherer(const DecodeArgs& a, Shared& sm) : a_(a), sm_(sm), lane_(threadIdx.x % 32) {
#pragma unroll
    for (int i = 0; i < kPatterns; ++i)
      to_[i] = KeyRow<S>(i * kRows + lane_ / kPieces, kUnitShift).piece(lane_ % kPieces);
  }

  // Of an item's tiles, `first` and every kLoaderWarps-th after it are this warp's.
  __device__ void begin(const Item& item, int first) {
    look_up(item, first, slots_);
    look_up(item, first + S::kLoaderWarps, next_);
    const kv::PagedKvView& kv = a_.kv;
    const char* base = static_cast<const char*>(kv.base) + lane_ % kPieces * 16;
    const int head = item.head / a_.share;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int token = (i * kRows + lane_ / kPieces) & (a_.page_size - 1);
      from_[0][i] = base + head * kv.k_head_stride + token * kv.k_token_stride;
      from_[1][i] = base + head * kv.v_head_stride + token * kv.v_token_stride + kv.v_offset;
      // Else the sums are made anew at each use.
      asm("" : "+l"(from_[0][i]), "+l"(from_[1][i]));
    }
  }

  // Its next tile, which is the item's `tile`.
  __device__ void copy(const Item& item, int tile, int stage, uint32_t parity) {
    auto page_bytes = static_cast<uint32_t>(a_.kv.page_stride);
    asm("" : "+r"(page_bytes));
    uint32_t slots[kLookUps];
#pragma unroll
    for (int j = 0; j < kLookUps; ++j) slots[j] = slot_or_padding(slots_[j], a_.num_slots);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const uint32_t to = shared_address(sm_.tiles[stage][part]);
      barrier_wait(&sm_.empty[stage][part], parity);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const uint32_t slot =
            __shfl_sync(0xffffffff, slots[i * kRows / 32], i * kRows % 32 + lane_ / kPieces);
        copy_16(to + to_[i % kPatterns] + rows_apart(i / kPatterns * 8),
                from_[part][i % kTokens] + uint64_t{slot} * page_bytes);
      }
      arrive_when_copied(&sm_.full[stage][part]);
    }
#pragma unroll
    for (int j = 0; j < kLookUps; ++j) slots_[j] = next_[j];
    look_up(item, tile + 2 * S::kLoaderWarps, next_);
  }

 private:
  static constexpr int kPieces = S::kKeyBytes / 16, kRows = 32 / kPieces;  // of 16 bytes; at once
  static constexpr int kSteps = S::kTile / kRows, kLookUps = S::kTile / 32;
  // The swizzle repeats every 8 rows, places in pages every 4.
  static constexpr int kPatterns = 8 / kRows, kTokens = kRows < 4 ? 4 / kRows : 1;
  static_assert(kRows <= 8 && kPatterns % kTokens == 0);

  static __device__ constexpr uint32_t rows_apart(int rows) {
    return (rows >> kUnitShift) * (S::kKeyBytes << kUnitShift) +
           (rows & (kUnit - 1)) * S::kRowBytes;
  }

  // Of a tile's rows, a lane each of 32. Rows outside the item come from the pages at its ends,
  // maybe unwritten: their scores are masked and their values cleared.
  __device__ void look_up(const Item& item, int tile, int (&slots)[kLookUps]) const {
    const int begin = item.chunk.begin, end = item.chunk.end;
    const int key = (begin & ~(S::kTile - 1)) + tile * S::kTile;
    if (key >= end) return;
    const int32_t* from = a_.at.page_slots + item.chunk.page_start;
#pragma unroll
    for (int j = 0; j < kLookUps; ++j)
      slots[j] = from[max(begin, min(key + 32 * j + lane_, end - 1)) >> a_.page_shift];
  }

  const DecodeArgs& a_;
  Shared& sm_;
  const int lane_;
  uint32_t to_[kPatterns];
  const char* from_[2][kTokens];          // K, V
  int slots_[kLookUps], next_[kLookUps];  // of this warp's next two tiles
};

// A loading warp. The first one leads: it takes items, tells the others of them, and has the
// queries copied.
template <typename S, int kStages>
class Loader {
 public:
  using Shared = DecodeShared<S, kStages>;
  __device__ Loader(const DecodeArgs& a, const CUtensorMap* k, const CUtensorMap* v, Shared& sm,
                    int warp)
      : a_(a),
        map_(warp == 0 ? k : v),
        sm_(sm),
        warp_(warp),
        lane_(threadIdx.x % 32),
        shift_(S::unit_shift(a)),
        waited_(!a.early),
        gatherer_(a, sm) {}

  __device__ void run() {
    if (waited_) wait_before();
    if (warp_ == 0) {
      lead();
    } else {
      follow();
    }
    if (!waited_) wait_before();
    if (S::kGather) wait_for_all_copies();
  }

 private:
  static constexpr int kTile = S::kTile;
  // On their way before the wait: more would hold up the launch before, which adds up its parts.
  static constexpr int kEarlyTiles = 2;
  static constexpr int kTakenAfter = kStages + 2;  // tiles: under load the memory takes 5 us

  __device__ void wait_before() {
    device::pdl_wait();
    device::pdl_trigger();
    waited_ = true;
  }

  __device__ void lead() {
    item_ = static_cast<int>(blockIdx.x);
    fetch();  // there is room for as many chunks as there are CTAs
    items_ = __ldcg(a_.work.num_chunks) * a_.heads;
    while (item_ < items_) {
      publish();
      barrier_wait(&sm_.item_known[place_], known_parity_);
      fetched_ = false;
      load_item();
      next_place();
    }
    if (!waited_) wait_before();
    barrier_wait(&sm_.item_empty[place_], known_parity_ ^ 1);
    if (lane_ != 0) return;
    sm_.items[place_].head = -1;
    barrier_arrive(&sm_.item_known[place_]);
    barrier_arrive(&sm_.item_full[place_]);
  }

  __device__ void follow() {
    while (true) {
      barrier_wait(&sm_.item_known[place_], known_parity_);
      if (sm_.items[place_].head < 0) return;
      load_item();
      __syncwarp();
      if (lane_ == 0) barrier_arrive(&sm_.item_empty[place_]);
      next_place();
    }
  }

  __device__ void next_place() {
    if (++place_ == S::kItems) place_ = 0, known_parity_ ^= 1;
  }

  // The item's chunk, on its way.
  __device__ void fetch() {
    const Chunk* chunk = a_.work.chunks + item_ / a_.heads;
    if (lane_ < kChunkWords) word_ = __ldcg(reinterpret_cast<const int*>(chunk) + lane_);
    pages_[0] = __ldcg(chunk->pages + lane_);
    pages_[1] = __ldcg(chunk->pages + 32 + lane_);
  }

  __device__ void publish() {
    barrier_wait(&sm_.item_empty[place_], known_parity_ ^ 1);
    Item& item = sm_.items[place_];
    if (lane_ < kChunkWords) reinterpret_cast<int32_t*>(&item.chunk)[lane_] = word_;
    item.chunk.pages[lane_] = pages_[0];
    item.chunk.pages[32 + lane_] = pages_[1];
    __syncwarp();
    if (lane_ == 0) {
      Chunk& c = item.chunk;
      const KeyRange seen = rows_of(a_, c).seen(a_.layer.window);
      c.begin = max(c.begin, seen.begin);
      c.end = min(c.end, seen.end);
      if (c.begin >= c.end) c.begin = c.end = 0;
      item.head = item_ % a_.heads;
      barrier_arrive(&sm_.item_known[place_]);
      barrier_expect(&sm_.item_full[place_], c.rows * S::kDim * 2);
    }
    __syncwarp();
  }

  // What comes of it is read in next_item(), when it has come.
  __device__ void take_next() {
    if (lane_ == 0 && items_ > static_cast<int>(gridDim.x)) taken_ = atomicAdd(a_.taken, 1);
  }
  __device__ int next_item() {
    const int grid = static_cast<int>(gridDim.x);
    if (items_ <= grid) return items_;
    // The counter's last reader puts it back: every CTA takes once for each of its items.
    if (lane_ == 0 && taken_ == items_ - 1) *a_.taken = 0;
    return __shfl_sync(0xffffffff, grid + taken_, 0);
  }

  __device__ void load_item() {
    const Item& item = sm_.items[place_];
    begin_ = item.chunk.begin;
    end_ = item.chunk.end;
    page_start_ = item.chunk.page_start;
    old_ = item.chunk.kv_len - item.chunk.q_len;
    kv_head_ = item.head / a_.share;
    bool begun = warp_ != 0;
    if (begin_ < end_) load_tiles(item, begun);
    if (!waited_) wait_before();
    if (!begun) begin_item();
    fetch_next();
  }

  __device__ void fetch_next() {
    if (warp_ != 0 || fetched_) return;
    item_ = next_item();
    fetched_ = true;
    if (item_ < items_) fetch();
  }

  // begun: whether queries are on their way.
  __device__ void load_tiles(const Item& item, bool& begun) {
    const int start = begin_ & ~(kTile - 1);
    if constexpr (S::kGather) {
      first_ = (warp_ - turn_) & (S::kLoaderWarps - 1);
      gatherer_.begin(item, first_);
    } else {
      first_pages(item, start);
    }
    int tiles = 0;
    for (int key = start; key < end_; key += kTile, ++tiles) {
      if (!waited_ && (tiles == kStages || key + kTile > old_)) wait_before();
      if (tiles > 0 && waited_ && !begun) begin_item(), begun = true;
      // When the next item's number has come, or has to.
      if (begun && (tiles >= kTakenAfter || key + 2 * kTile >= end_)) fetch_next();
      if constexpr (S::kGather) {
        gather(item, tiles);
      } else {
        if (!waited_ && stage_ >= kEarlyTiles)
          barrier_wait(&sm_.full[stage_ - kEarlyTiles][warp_], 0);
        copy_tile(warp_, key);
      }
      if (++stage_ == kStages) stage_ = 0, parity_ ^= 1;
    }
    turn_ += tiles;
  }

  // Who has no part in a tile waits for its place and arrives as well: so nobody is a round of the
  // ring ahead of the others, or behind, where a parity would mean another round.
  __device__ void gather(const Item& item, int tile) {
    if (tile % S::kLoaderWarps == first_) return gatherer_.copy(item, tile, stage_, parity_);
    barrier_wait(&sm_.empty[stage_][0], parity_);
    __syncwarp();
    if (lane_ == 0) barrier_arrive(&sm_.full[stage_][0]);
  }

  // Queries, one copy for each row.
  __device__ void begin_item() {
    const Item& item = sm_.items[place_];
    const char* q = static_cast<const char*>(a_.io.q);
    for (int row = lane_; row < item.chunk.rows; row += 32) {
      const TokenHead of = token_head(a_, item, row);
      const int64_t from = of.token * a_.io.q_stride + int64_t{of.head} * S::kDim;
      copy_row(sm_.q[place_] + row * S::kQStride, q + from * 2, S::kDim * 2,
               &sm_.item_full[place_]);
    }
    take_next();
  }

  // Without kGather. Slots of 64 pages from page entry_ on, two of each lane, and the next 64.
  __device__ void first_pages(const Item& item, int start) {
    entry_ = start >> a_.page_shift;
    if (start == item.chunk.pages_from) {
      ids_ = {item.chunk.pages[lane_], item.chunk.pages[32 + lane_]};
    } else {
      ids_ = look_up(entry_);
    }
    next_ids_ = look_up(entry_ + kChunkPages);
  }
  struct Ids {
    int low, high;
  };
  __device__ Ids look_up(int entry) const {
    const int last = (end_ - 1) >> a_.page_shift;
    if (entry > last) return {0, 0};
    const int* slots = a_.at.page_slots + page_start_;
    return {slots[min(entry + lane_, last)], slots[min(entry + 32 + lane_, last)]};
  }
  // Of page `entry`, each lane its own.
  __device__ int slot_of(int entry) const {
    const int i = entry - entry_;
    const int low = __shfl_sync(0xffffffff, ids_.low, i & 31);
    const int high = __shfl_sync(0xffffffff, ids_.high, i & 31);
    return slot_or_padding(i < 32 ? low : high, a_.num_slots);
  }

  // Units of a tile in which some key of [begin_, end_) lies, a lane each.
  __device__ void copy_tile(int part, int key) {
    if ((key >> a_.page_shift) >= entry_ + kChunkPages) {
      entry_ += kChunkPages;
      ids_ = next_ids_;
      next_ids_ = look_up(entry_ + kChunkPages);
    }
    const int first = max(0, begin_ - key) >> shift_;
    const int end = ((min(kTile, end_ - key) - 1) >> shift_) + 1;
    const int at = key + (lane_ << shift_), slot = slot_of(at >> a_.page_shift);
    uint64_t* full = &sm_.full[stage_][part];
    barrier_wait(&sm_.empty[stage_][part], parity_);
    if (lane_ == 0) barrier_expect(full, (end - first) * S::kKeyBytes << shift_);
    __syncwarp();
    if (lane_ >= first && lane_ < end)
      copy_page_box(sm_.tiles[stage_][part] + (lane_ * S::kKeyBytes << shift_), map_,
                    at & (a_.page_size - 1), kv_head_, slot, full);
  }

  const DecodeArgs& a_;
  const CUtensorMap* map_;  // without kGather: of what this warp loads
  Shared& sm_;
  const int warp_, lane_, shift_;
  bool waited_, fetched_ = false;
  int items_ = 0, item_ = 0, taken_ = 0;  // the leader's
  int word_ = 0, pages_[2] = {0, 0};
  int stage_ = 0, place_ = 0;
  uint32_t parity_ = 1, known_parity_ = 0;
  int begin_ = 0, end_ = 0, old_ = 0, page_start_ = 0, kv_head_ = 0;  // of the item
  int entry_ = 0;
  Ids ids_{}, next_ids_{};
  // With kGather: tiles so far; the first of the item's that this warp gathers.
  int turn_ = 0, first_ = 0;
  Gatherer<S, kStages> gatherer_;
};

}  // namespace attune::attention::fa3
