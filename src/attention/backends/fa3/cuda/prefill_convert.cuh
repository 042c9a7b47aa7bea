// The prefill kernel's warps that load, over caches of 8 bits: each copies half of a tile's rows to
// a place of its own, ahead, and writes them on into the ring as binary16, to which e4m3 converts
// exactly. Rows are copied 16 bytes a thread whatever the pages. These are the kernel's busiest
// warps; their loop is the same for K and V, so that it stays small.
#pragma once

#include "attention/backends/fa3/cuda/prefill_producer.cuh"

namespace attune::attention::fa3 {

template <int kDim>
class PrefillConverter : PrefillProducer<kDim, kDim, __nv_fp8_e4m3, false> {
  using Base = PrefillProducer<kDim, kDim, __nv_fp8_e4m3, false>;
  using typename Base::Shape;
  static_assert(Shape::kKStages == Shape::kVStages);

 public:
  __device__ PrefillConverter(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                              const PrefillParams& p, uint32_t shared, PrefillBarriers& barriers)
      : Base(q, k, v, p, shared, barriers),
        warp_(static_cast<int>(threadIdx.x / 32)),
        which_(warp_ % 2),
        is_k_(warp_ < 2),
        full_(is_k_ ? barriers.k_full : barriers.v_full),
        empty_(is_k_ ? barriers.k_empty : barriers.v_empty),
        staged_(shared + Shape::kStaged + warp_ * Shape::kStagedBytes),
        ring_at_(shared + (is_k_ ? Shape::kK : Shape::kV) +
                 which_ * (kPrefillKeys / 2) * kPieceRow),
        token_stride_(static_cast<uint32_t>(is_k_ ? p.k_token_stride : p.v_token_stride)),
        chunk_(lane_ % kChunks),
        group_(lane_ / kChunks) {
    shift_ = __ffs(p.page_size) - 1;
  }

  // Warps 0 and 1: K, 2 and 3: V.
  __device__ void run() {
    if (warp_ == 0) {
      this->take_items([&](const PrefillItem& item) {
        begin(item);
        for (int i = 0; i < item.tiles; ++i) tile();
      });
    } else {
      this->follow_items([&](const PrefillItem& item, const Ring<Shape::kQStages>& at) {
        if (item.tiles > 0) begin(item);
        if (!is_k_) this->convert_queries(item, which_, at);
        for (int i = 0; i < item.tiles; ++i) tile();
      });
    }
  }

 private:
  using Base::lane_, Base::p_;
  static constexpr int kRows = 32, kSteps = kPrefillKeys / 2 / kRows;
  // 16 bytes of a row each; rows that the lanes have at once; how often they do.
  static constexpr int kChunks = kDim / 16, kGroups = 32 / kChunks, kTurns = kRows / kGroups;

  __device__ void begin(const PrefillItem& item) {
    const int head = item.head * p_.tile_heads / p_.group;
    head_ = (is_k_ ? p_.k + head * p_.k_head_stride : p_.v + head * p_.v_head_stride) + chunk_ * 16;
    key_ = item.last_tile * kPrefillKeys + which_ * (kPrefillKeys / 2);
    tiles_ = item.tiles;
    kv_len_ = item.block.kv_len;
    first_page_ = item.block.first_page;
    look_up();
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) fetch(step);
  }
  __device__ void tile() {
    barrier_wait(empty_ + ring_.stage, ring_.parity ^ 1);
    const uint32_t to = ring_at_ + ring_.stage * Shape::kKBytes;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      convert(step, to + step * kRows * kPieceRow);
      fetch(step);
    }
    fence_async_proxy();
    __syncwarp();
    if (lane_ == 0) barrier_arrive(full_ + ring_.stage);
    ring_.advance();
  }

  // Where this lane's row of what is fetched next lies. Nothing here waits for the slot, which is
  // to be checked.
  __device__ void look_up() {
    if (kv_len_ <= 0) return;
    const int key = key_ + lane_;
    // Past the end: any page of the sequence, nobody sees it.
    slot_ = __ldg(p_.page_slots + first_page_ + (min(key, kv_len_ - 1) >> shift_));
    row_ = key & (p_.page_size - 1);
  }
  // Begins the copies of the next rows to a place that is free; where there are none, of nothing.
  __device__ void fetch(int step) {
    if (tiles_ > 0) {
      const uint64_t mine =
          uint64_t{static_cast<uint32_t>(slot_or_padding(slot_, p_.num_slots))} * p_.page_stride +
          row_ * token_stride_;
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const int row = i * kGroups + group_;
        copy_16(place(step) + row * kDim + chunk_ * 16, head_ + __shfl_sync(0xffffffff, mine, row));
      }
      const bool last = step + 1 == kSteps;
      key_ += last ? -(kPrefillKeys + (kSteps - 1) * kRows) : kRows;
      if (last) --tiles_;
      if (tiles_ > 0) look_up();
    }
    commit_copies();
  }

  // Writes the rows that were fetched first to `to`, a piece's rows in a ring, a multiple of eight
  // from its first. Then their place is free.
  __device__ void convert(int step, uint32_t to) const {
    wait_for_copies<kSteps - 1>();
    __syncwarp();
    uint4 codes[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i)
      codes[i] = load_16(place(step) + chunk_ * 16 + (row_of(i) + eights(i) * 8) * kDim);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const uint4& x = codes[i];
      const int row = row_of(i);
      const uint32_t at = to + chunk_ / 4 * Shape::kPieceBytes + row * kPieceRow +
                          ((chunk_ % 4 * 2 ^ row) << 4) + eights(i) * 8 * kPieceRow;
      store_16(at, {low(x.x), high(x.x), low(x.y), high(x.y)});
      store_16(at ^ 16, {low(x.z), high(x.z), low(x.w), high(x.w)});
    }
    __syncwarp();
  }
  __device__ uint32_t place(int step) const {
    return staged_ + step * kRows * kDim;
  }
  // The row among eight of a lane's chunk, at even and at odd turns. Eight lanes read and write
  // eight different groups of banks: where they have a whole row, the pieces of 64 dims are of rows
  // beside each other, whose places differ by the swizzle.
  __device__ int row_of(int turn) const {
    return kChunks == 4 ? group_ : group_ * 2 + ((turn ^ chunk_ / 4) & 1);
  }
  static __device__ int eights(int turn) {
    return kChunks == 4 ? turn : turn / 2;
  }
  static __device__ uint32_t low(uint32_t codes) {
    return from_e4m3(static_cast<uint16_t>(codes));
  }
  static __device__ uint32_t high(uint32_t codes) {
    return from_e4m3(static_cast<uint16_t>(codes >> 16));
  }

  const int warp_, which_;  // which: half of a tile's rows
  const bool is_k_;
  uint64_t *const full_, *const empty_;
  const uint32_t staged_, ring_at_;
  const uint32_t token_stride_;  // within a page, whose own is no larger
  const int chunk_, group_;
  int shift_;  // pages are of 2^shift_ tokens
  Ring<Shape::kKStages> ring_;
  // Of what is fetched next.
  const char* head_ = nullptr;  // this lane's 16 bytes of page 0's first row
  int key_ = 0, tiles_ = 0, kv_len_ = 0, first_page_ = 0;
  int slot_ = 0, row_ = 0;
};

}  // namespace attune::attention::fa3
