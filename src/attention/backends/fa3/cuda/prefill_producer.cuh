// The prefill kernel's warps that take the work and fill the rings. A box costs its warp some 100
// cycles, so that small pages need several; of the smallest, rows are copied 16 bytes a thread.
// Where operands are binary16, V's warps convert the queries.
#pragma once

#include "attention/backends/fa3/cuda/prefill_shape.cuh"

namespace attune::attention::fa3 {

template <int kQkDim, int kVDim, typename Kv, bool kGather>
class PrefillProducer {
 public:
  using Shape = PrefillShape<kQkDim, kVDim, Kv>;

  __device__ PrefillProducer(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                             const PrefillParams& p, uint32_t shared, PrefillBarriers& barriers)
      : q_(q),
        k_(k),
        v_(v),
        p_(p),
        shared_(shared),
        barriers_(barriers),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  // Warps 0 and 1: K, 2 and 3: V.
  __device__ void run() {
    const int warp = static_cast<int>(threadIdx.x / 32), which = warp % 2;
    if (warp == 0) {
      take_items([&](const PrefillItem& item) { load<true>(item, 0); });
    } else if (warp < 2 && which < Shape::kKWarps) {
      follow<true>(which);
    } else if (warp >= 2 && which < Shape::kVWarps) {
      follow<false>(which);
    }
    if (kGather) wait_for_all_copies();
  }

 protected:
  // Blocks are taken in the plan's order, the longest first; who takes which does not matter to the
  // results. `work` of each.
  template <typename Work>
  __device__ void take_items(const Work& work) {
    const int heads = __ldcg(&p_.counters->heads);
    const int total = __ldcg(&p_.counters->blocks) * heads;
    int index = static_cast<int>(blockIdx.x);
    while (index < total) {
      const PrefillItem item = prefill_item(p_, index, heads);
      int next = 0;
      if (lane_ == 0) next = static_cast<int>(gridDim.x + atomicAdd(&p_.counters->taken, 1u));
      queries(item);
      work(item);
      index = __shfl_sync(0xffffffff, next, 0);
    }
    queries({});
    if (lane_ == 0 && atomicAdd(&p_.counters->done, 1u) == gridDim.x - 1) {
      p_.counters->taken = 0;
      p_.counters->done = 0;
    }
  }
  // What another warp takes, and where its queries are; without tiles: that was all.
  template <typename Work>
  __device__ void follow_items(const Work& work) {
    while (true) {
      barrier_wait(&barriers_.item_full[items_.stage], items_.parity);
      const PrefillItem item = barriers_.items[items_.stage];
      __syncwarp();
      if (lane_ == 0) barrier_arrive(&barriers_.q_empty[items_.stage]);
      const Ring<Shape::kQStages> at = items_;
      items_.advance();
      work(item, at);
      if (item.tiles == 0) return;
    }
  }

  // The item, and its queries.
  __device__ void queries(const PrefillItem& item) {
    uint64_t* full = (Shape::kF16 ? barriers_.q_raw : barriers_.q_full) + items_.stage;
    const int box_bytes = p_.tile_heads * p_.tile_tokens * kPieceRow;
    if (lane_ == 0) {
      barrier_wait(&barriers_.q_empty[items_.stage], items_.parity ^ 1);
      barriers_.items[items_.stage] = item;
      barrier_arrive(&barriers_.item_full[items_.stage]);
      if (item.tiles > 0) {
        barrier_expect(full, 2 * Shape::kQPieces * box_bytes);
      } else {
        barrier_arrive(full);
      }
    }
    __syncwarp();
    if (item.tiles > 0 && lane_ < 2 * Shape::kQPieces) {
      const int half = lane_ / Shape::kQPieces, piece = lane_ % Shape::kQPieces;
      copy_box(shared_ + items_.stage * Shape::kQBytes + half * Shape::kGroupQBytes +
                   piece * Shape::kGroupPieceBytes,
               &q_, piece * 64, item.head * p_.tile_heads,
               item.block.first_row + half * p_.tile_tokens, full);
    }
    items_.advance();
  }
  // This warp's part of an item's queries becomes binary16, where they lie.
  __device__ void convert_queries(const PrefillItem& item, int which,
                                  const Ring<Shape::kQStages>& at) const {
    constexpr int kBytes = Shape::kQBytes / Shape::kVWarps, kAtOnce = 4;
    const uint32_t q = shared_ + at.stage * Shape::kQBytes + which * kBytes + lane_ * 16;
    if (item.tiles > 0) {
      barrier_wait(&barriers_.q_raw[at.stage], at.parity);
#pragma unroll 1
      for (int first = 0; first < kBytes; first += kAtOnce * 512) {
        uint4 x[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) x[i] = load_16(q + first + i * 512);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          store_16(q + first + i * 512,
                   {to_half(x[i].x), to_half(x[i].y), to_half(x[i].z), to_half(x[i].w)});
      }
      fence_async_proxy();
    }
    __syncwarp();
    if (lane_ == 0) barrier_arrive(&barriers_.q_full[at.stage]);
  }

 private:
  template <bool kIsK>
  __device__ void follow(int which) {
    follow_items([&](const PrefillItem& item, const Ring<Shape::kQStages>& at) {
      if (Shape::kF16 && !kIsK) convert_queries(item, which, at);
      if (item.tiles > 0) load<kIsK>(item, which);
    });
  }

  // Every second piece, from `which` on, of the item's tiles of K or V.
  template <bool kIsK>
  __device__ void load(const PrefillItem& item, int which) {
    if constexpr (kGather) {
      rows<kIsK>(item, which);
    } else {
      tiles<kIsK>(item, which);
    }
  }
  template <bool kIsK>
  __device__ void tiles(const PrefillItem& item, int which) {
    constexpr int kPieces = kIsK ? Shape::kQPieces : Shape::kVPieces;
    const int head = item.head * p_.tile_heads / p_.group;
    const int pieces = (kPieces - which + 1) / 2;
    const int boxes = kPrefillKeys / p_.box_rows;  // of a piece; a power of two
    Place next = place(item, item.last_tile, lane_ & (boxes - 1));
#pragma unroll 1
    for (int i = 0; i < item.tiles; ++i) {
      const int tile = item.last_tile - i;
      const Place now = next;
      if (i + 1 < item.tiles) next = place(item, tile - 1, lane_ & (boxes - 1));
      auto& ring = ring_of<kIsK>();
      uint64_t* full = (kIsK ? barriers_.k_full : barriers_.v_full) + ring.stage;
      if (lane_ == 0) {
        barrier_wait((kIsK ? barriers_.k_empty : barriers_.v_empty) + ring.stage, ring.parity ^ 1);
        barrier_expect(full, pieces * Shape::kPieceBytes);
      }
      __syncwarp();
      const uint32_t to = shared_ + (kIsK ? Shape::kK + ring.stage * Shape::kKBytes
                                          : Shape::kV + ring.stage * Shape::kVBytes);
      if (lane_ < boxes * pieces) {
        const int box = lane_ & (boxes - 1), piece = which + 2 * (lane_ / boxes);
        copy_box(to + piece * Shape::kPieceBytes + box * p_.box_rows * kPieceRow, kIsK ? &k_ : &v_,
                 piece * 64, now.row, head, slot_or_padding(now.slot, p_.num_slots), full);
      }
      ring.advance();
    }
  }
  // With kGather: of a tile's keys, a lane each of 32; past the end, any of the sequence: nobody
  // sees it. Nothing here waits for what is read.
  static constexpr int kLookUps = kPrefillKeys / 32;
  __device__ void look_up(const PrefillItem& item, int tile, int shift,
                          int (&slots)[kLookUps]) const {
    const PrefillBlock& b = item.block;
    const int* from = p_.page_slots + b.first_page;
#pragma unroll
    for (int j = 0; j < kLookUps; ++j) {
      const int key = min(tile * kPrefillKeys + 32 * j + lane_, b.kv_len - 1);
      slots[j] = b.kv_len > 0 ? __ldg(from + (max(key, 0) >> shift)) : 0;
    }
  }
  // Eight lanes copy a row of the piece, four rows at once: a lane's have the same place in their
  // pages, which are of 1, 2 or 4.
  template <bool kIsK>
  __device__ void rows(const PrefillItem& item, int which) {
    static_assert((kIsK ? Shape::kQPieces : Shape::kVPieces) <= 2);
    const int head = item.head * p_.tile_heads / p_.group;
    const int row = lane_ / 8, column = lane_ % 8;
    const int shift = __ffs(p_.page_size) - 1, in_page = row & (p_.page_size - 1);
    const char* base = (kIsK ? p_.k + head * p_.k_head_stride + in_page * p_.k_token_stride
                             : p_.v + head * p_.v_head_stride + in_page * p_.v_token_stride) +
                       which * kPieceRow + column * 16;
    auto page_bytes = static_cast<uint32_t>(p_.page_stride);
    asm("" : "+l"(base), "+r"(page_bytes));  // else their parts are added anew for each row
    int next[kLookUps];
    look_up(item, item.last_tile, shift, next);
#pragma unroll 1
    for (int i = 0; i < item.tiles; ++i) {
      int slots[kLookUps];
#pragma unroll
      for (int j = 0; j < kLookUps; ++j) slots[j] = slot_or_padding(next[j], p_.num_slots);
      look_up(item, item.last_tile - i - 1, shift, next);
      auto& ring = ring_of<kIsK>();
      barrier_wait((kIsK ? barriers_.k_empty : barriers_.v_empty) + ring.stage, ring.parity ^ 1);
      const uint32_t to = shared_ +
                          (kIsK ? Shape::kK + ring.stage * Shape::kKBytes
                                : Shape::kV + ring.stage * Shape::kVBytes) +
                          which * Shape::kPieceBytes + row * kPieceRow;
      const uint32_t even = to + ((column ^ row) << 4), odd = to + ((column ^ (row + 4)) << 4);
#pragma unroll
      for (int j = 0; j < kLookUps; ++j) {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const auto slot = static_cast<uint32_t>(__shfl_sync(0xffffffff, slots[j], 4 * k + row));
          copy_16((k % 2 ? odd : even) + (32 * j + 4 * k) * kPieceRow,
                  base + uint64_t{slot} * page_bytes);
        }
      }
      arrive_when_copied((kIsK ? barriers_.k_full : barriers_.v_full) + ring.stage);
      ring.advance();
    }
  }
  template <bool kIsK>
  __device__ auto& ring_of() {
    if constexpr (kIsK) {
      return k_ring_;
    } else {
      return v_ring_;
    }
  }

  // Where a box of a tile lies. Nothing here waits for the slot, which is to be checked.
  struct Place {
    int slot, row;
  };
  __device__ Place place(const PrefillItem& item, int tile, int box) const {
    const int key = tile * kPrefillKeys + box * p_.box_rows;
    const PrefillBlock& b = item.block;
    if (!p_.page_slots) return {0, b.first_page + key};
    if (b.kv_len <= 0) return {0, 0};
    // Past the end: any page of the sequence, nobody sees it.
    const int page = min(key, b.kv_len - 1) / p_.page_size;
    const int slot = __ldg(p_.page_slots + b.first_page + page);
    return {slot, key % p_.page_size};
  }

  const CUtensorMap &q_, &k_, &v_;
  Ring<Shape::kKStages> k_ring_;
  Ring<Shape::kVStages> v_ring_;

 protected:
  const PrefillParams& p_;
  const uint32_t shared_;
  PrefillBarriers& barriers_;
  const int lane_;
  Ring<Shape::kQStages> items_;
};

}  // namespace attune::attention::fa3
