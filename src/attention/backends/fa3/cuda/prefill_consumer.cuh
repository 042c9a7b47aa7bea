// The prefill kernel's warpgroups that multiply.
#pragma once

#include "attention/backends/fa3/base2.h"
#include "attention/backends/fa3/cuda/prefill_shape.cuh"
#include "attention/backends/fa3/cuda/prefill_softmax.cuh"

namespace attune::attention::fa3 {

template <int kQkDim, int kVDim, typename Kv, bool kGather>
class PrefillConsumer {
 public:
  using Shape = PrefillShape<kQkDim, kVDim, Kv>;
  using Softmax = PrefillSoftmax<Shape::kF16 ? 7 : 0>;
  static constexpr int kKeys = kPrefillKeys;

  __device__ PrefillConsumer(const PrefillParams& p, uint32_t shared, PrefillBarriers& barriers)
      : p_(p),
        shared_(shared),
        barriers_(barriers),
        half_(__shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 128) - 1, 0)),
        warp_(static_cast<int>(threadIdx.x / 32 % 4)),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  // One of the two warpgroups.
  __device__ void run() {
    Registers r;
    PrefillItem item = next_item();
    if (item.tiles == 0) return;
    if (half_ == 1) named_arrive(1, 256);
    wait_for_k();
    scores(r.s);
    while (true) {
      const MaskBounds bounds(p_, item, half_, 16 * warp_ + lane_ / 4);
      first_weights(item, bounds, r);
      const int first = item.last_tile - item.tiles + 1;
      for (int tile = item.last_tile - 1; tile >= first; --tile)
        next_weights(bounds, tile, tile == first, r);
      const int place = q_.stage;
      q_.advance();
      const PrefillItem next = last_values(r);
      store(item, r.softmax, r.o, place);
      if (next.tiles == 0) break;
      item = next;
    }
    wgmma_wait<0>();
    hold(r.s);
  }

 private:
  struct Registers {
    float s[kKeys / 2], o[kVDim / 2];  // scores, then weights; sums of values
    uint32_t w[kKeys / 4];             // weights as the products take them
    int add;                           // whether there are sums yet
    Softmax softmax;
  };

  // Of a block's last tile, whose scores are being made; nothing runs beside.
  __device__ __forceinline__ void first_weights(const PrefillItem& item, const MaskBounds& bounds,
                                                Registers& r) {
    float keep[2];
    r.softmax.begin();
    wgmma_wait<0>();
    hold(r.s);
    release_k();
    if (item.tiles == 1) release_early_q();
    cap_and_mask(r.s, bounds, item.last_tile);
    r.softmax.template online_softmax<kKeys>(r.s, p_.to_log2, keep);
    to_weights(r.s, r.w);
    clear_past_end(item);
    r.add = 0;
  }
  // Of a tile; the values of the one before go on beside.
  __device__ __forceinline__ void next_weights(const MaskBounds& bounds, int tile, bool last,
                                               Registers& r) {
    float keep[2];
    wait_for_k();
    take_baton();
    hold(r.o);
    hold(r.w);
    scores(r.s);
    wait_for_v();
    values(r.o, r.w, r.add);
    pass_baton();
    wgmma_wait<1>();
    hold(r.s);
    release_k();
    if (last) release_early_q();
    cap_and_mask(r.s, bounds, tile);
    r.softmax.template online_softmax<kKeys>(r.s, p_.to_log2, keep);
    r.softmax.stay_before_wait();
    wgmma_wait<0>();
    hold(r.o);
    hold(r.w);
    release_v();
    rescale(r.o, keep);
    to_weights(r.s, r.w);
    r.add = 1;
  }
  // Of a block's first tile; the next block's first scores go on behind.
  __device__ __forceinline__ PrefillItem last_values(Registers& r) {
    take_baton();
    hold(r.o);
    hold(r.w);
    wait_for_v();
    values(r.o, r.w, r.add);
    const PrefillItem next = next_item();
    if (next.tiles > 0) wait_for_k();
    scores(r.s);  // of nothing, at the end
    pass_baton();
    wgmma_wait<1>();
    hold(r.o);
    release_v();
    return next;
  }

  __device__ PrefillItem next_item() {
    barrier_wait(&barriers_.q_full[q_.stage], q_.parity);
    return barriers_.items[q_.stage];
  }
  __device__ __forceinline__ void wait_for_k() const {
    barrier_wait(&barriers_.k_full[k_.stage], k_.parity);
    if (kGather) fence_async_proxy();
  }
  __device__ __forceinline__ void wait_for_v() const {
    barrier_wait(&barriers_.v_full[v_.stage], v_.parity);
    if (kGather) fence_async_proxy();
  }
  __device__ __forceinline__ void scores(float (&s)[kKeys / 2]) {
    const uint32_t q =
        operand_along(shared_ + q_.stage * Shape::kQBytes + half_ * Shape::kGroupQBytes);
    const uint32_t k = operand_along(shared_ + Shape::kK + k_.stage * Shape::kKBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kQkDim / 16; ++i)
      product_shared<Shape::kF16>(s, operand_at(q, i / 4 * Shape::kGroupPieceBytes + i % 4 * 32),
                                  operand_at(k, i / 4 * Shape::kPieceBytes + i % 4 * 32), i > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void values(float (&o)[kVDim / 2], const uint32_t (&w)[kKeys / 4],
                                         int add) {
    const uint32_t v =
        operand_across(shared_ + Shape::kV + v_.stage * Shape::kVBytes, Shape::kPieceBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      product_registers<kVDim, Shape::kF16>(o, w + 4 * i, operand_at(v, i * 16 * kPieceRow),
                                            i > 0 ? 1 : add);
    wgmma_commit();
  }
  // Each warpgroup issues its products as one batch, in turn.
  __device__ void take_baton() const {
    named_wait(1 + half_, 256);
  }
  __device__ void pass_baton() const {
    named_arrive(2 - half_, 256);
  }

  __device__ void arrive(uint64_t* barrier) const {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(barrier);
  }
  __device__ void release_k() {
    arrive(&barriers_.k_empty[k_.stage]);
    k_.advance();
  }
  __device__ void release_v() {
    arrive(&barriers_.v_empty[v_.stage]);
    v_.advance();
  }
  // The last scores of a block are made: where results do not leave through the queries' place.
  __device__ void release_early_q() {
    if (Shape::kQStages == 1) arrive(&barriers_.q_empty[0]);
  }

  // Scores of a tile with the soft cap, and of what a row does not see as none.
  __device__ __forceinline__ void cap_and_mask(float (&s)[kKeys / 2], const MaskBounds& bounds,
                                               int tile) const {
    if (p_.to_cap > 0) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s[i] = tanh_half_base2(s[i] * (p_.to_cap * (2 * kLog2E)));
    }
    if (bounds.sees_all(tile)) return;
    const int column = tile * kKeys + lane_ % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int end = bounds.end[h] - column, begin = bounds.begin[h] - column;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * j + e >= end || 8 * j + e < begin) s[4 * j + 2 * h + e] = -INFINITY;
      }
    }
  }
  __device__ __forceinline__ void to_weights(const float (&s)[kKeys / 2],
                                             uint32_t (&w)[kKeys / 4]) const {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) w[i] = pack<Shape::kF16>(s[2 * i], s[2 * i + 1]);
  }
  __device__ __forceinline__ void rescale(float (&o)[kVDim / 2], const float (&keep)[2]) const {
    if (__all_sync(0xffffffff, keep[0] == 1.0f && keep[1] == 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kVDim / 2; ++i) o[i] *= keep[i / 2 % 2];
  }

  // Rows of V past a sequence's end may hold anything, and a weight of 0 does not stop a NaN.
  __device__ void clear_past_end(const PrefillItem& item) const {
    const int left = item.block.kv_len - item.last_tile * kKeys;
    if (left >= kKeys) return;
    wait_for_v();
    const uint32_t v = shared_ + Shape::kV + v_.stage * Shape::kVBytes;
    const int thread = 32 * warp_ + lane_;
    for (int row = max(left, 0) + thread / 8; row < kKeys; row += 16) {
#pragma unroll
      for (int piece = 0; piece < Shape::kVPieces; ++piece)
        store_16(v + piece * Shape::kPieceBytes + row * kPieceRow + thread % 8 * 16, {});
    }
    fence_async_proxy();
    named_wait(3 + half_, 128);
  }

  // Where a thread's part of a block's partial results lies: what its registers hold.
  __device__ int64_t part_at(const PrefillItem& item, int part) const {
    const int64_t heads = p_.q_heads / p_.tile_heads;
    return ((item.block.first_part + part) * heads + item.head) * 2 + half_;
  }
  // This part of the keys goes to memory; the warpgroup that comes last adds up all of them, in
  // their order. Whether this one is it.
  __device__ bool merge(const PrefillItem& item, Softmax& softmax, float (&o)[kVDim / 2]) {
    const int thread = 32 * warp_ + lane_;
    const auto sums = [&](int part) {
      return p_.part_sums + part_at(item, part) * (kVDim / 2) * 128 + thread;
    };
    const auto scales = [&](int part) {
      return reinterpret_cast<float4*>(p_.part_scales) + part_at(item, part) * 128 + thread;
    };
    float* to = sums(item.block.part);
#pragma unroll
    for (int i = 0; i < kVDim / 2; ++i) __stcg(to + i * 128, o[i]);
    __stcg(scales(item.block.part),
           make_float4(softmax.top[0], softmax.top[1], softmax.sum[0], softmax.sum[1]));
    __threadfence();
    named_wait(3 + half_, 128);
    if (thread == 0) {
      uint32_t* arrived = p_.arrivals + part_at(item, 0);
      const bool last = atomicAdd(arrived, 1u) + 1 == static_cast<uint32_t>(item.block.parts);
      if (last) *arrived = 0;
      barriers_.last[half_] = last;
      __threadfence();
    }
    named_wait(3 + half_, 128);
    if (!barriers_.last[half_]) return false;
    softmax.begin();
    for (int part = 0; part < item.block.parts; ++part) {
      const float4 x = __ldcg(scales(part));
      softmax.top[0] = fmaxf(softmax.top[0], x.x);
      softmax.top[1] = fmaxf(softmax.top[1], x.y);
    }
#pragma unroll
    for (int i = 0; i < kVDim / 2; ++i) o[i] = 0;
    for (int part = 0; part < item.block.parts; ++part) {
      const float4 x = __ldcg(scales(part));
      const float of[2] = {x.x == -INFINITY ? 0 : exp2_fast((x.x - softmax.top[0]) * p_.to_log2),
                           x.y == -INFINITY ? 0 : exp2_fast((x.y - softmax.top[1]) * p_.to_log2)};
      softmax.sum[0] = fmaf(x.z, of[0], softmax.sum[0]);
      softmax.sum[1] = fmaf(x.w, of[1], softmax.sum[1]);
      const float* from = sums(part);
#pragma unroll
      for (int i = 0; i < kVDim / 2; ++i) o[i] = fmaf(__ldcg(from + i * 128), of[i / 2 % 2], o[i]);
    }
    return true;
  }

  __device__ void release_late_q(int place) {
    if (Shape::kQStages == 1) return;
    fence_async_proxy();
    arrive(&barriers_.q_empty[place]);
  }

  // What the denominators leave of the sums, and the logarithms of those.
  __device__ void scale_rows(const PrefillItem& item, const Softmax& softmax, int rows,
                             float (&scale)[2]) const {
    const int row = 16 * warp_ + lane_ / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h;
      const PrefillRow at(p_, r);
      const int64_t head = item.head * p_.tile_heads + at.head;
      float sum = softmax.sum[h], top = softmax.log2_unit(h, p_.to_log2);
      if (p_.sinks && r < rows) {
        const float sink = __ldg(p_.sinks + head) * kLog2E;
        if (top == -INFINITY) top = sink;
        sum += exp2_fast(sink - top);
      }
      scale[h] = sum == 0 ? 0.0f : __fdividef(1.0f, sum);
      const int64_t token = item.block.first_row + half_ * p_.tile_tokens + at.token;
      if (p_.lse && lane_ % 4 == 0 && r < rows)
        p_.lse[token * p_.q_heads + head] = sum == 0 ? -INFINITY : (top + __log2f(sum)) * kLn2;
    }
  }

  // A warp's 16 rows, whole rows at a time, through its own shared memory.
  __device__ void store(const PrefillItem& item, Softmax& softmax, float (&o)[kVDim / 2],
                        int place) {
    softmax.finish();
    if (item.block.parts > 1 && !merge(item, softmax, o)) {
      release_late_q(place);
      return;
    }
    const int heads = p_.tile_heads, token = half_ * p_.tile_tokens;
    const int rows = min(p_.tile_tokens, item.block.tokens - token) * heads;
    float scale[2];
    scale_rows(item, softmax, rows, scale);
    // Of four rows of the warp each lane writes an eighth of a piece.
    __nv_bfloat16* out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const PrefillRow row(p_, 16 * warp_ + 4 * i + lane_ / 8);
      out[i] = static_cast<__nv_bfloat16*>(p_.out) +
               (int64_t{item.block.first_row} + token + row.token) * p_.out_stride +
               (int64_t{item.head} * heads + row.head) * kVDim + lane_ % 8 * 8;
    }
#pragma unroll
    for (int piece = 0; piece < Shape::kVPieces; ++piece) {
      const uint32_t at = Shape::kQStages == 1
                              ? shared_ + Shape::kOut + (half_ * 4 + warp_) * 16 * kPieceRow
                              : shared_ + place * Shape::kQBytes + half_ * Shape::kGroupQBytes +
                                    piece * Shape::kGroupPieceBytes + warp_ * 16 * kPieceRow;
      __syncwarp();
      const int to_row = lane_ % 16, to_column = lane_ / 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = o + 32 * piece + 8 * i;
        store_matrices(at + to_row * kPieceRow + (((2 * i + to_column) ^ (to_row % 8)) << 4),
                       pack<false>(x[0] * scale[0], x[1] * scale[0]),
                       pack<false>(x[2] * scale[1], x[3] * scale[1]),
                       pack<false>(x[4] * scale[0], x[5] * scale[0]),
                       pack<false>(x[6] * scale[1], x[7] * scale[1]));
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int from_row = 4 * i + lane_ / 8;
        const uint4 x = load_16(at + from_row * kPieceRow + ((lane_ % 8 ^ (from_row % 8)) << 4));
        if (16 * warp_ + from_row < rows) *reinterpret_cast<uint4*>(out[i] + piece * 64) = x;
      }
    }
    release_late_q(place);
  }

  const PrefillParams& p_;
  const uint32_t shared_;
  PrefillBarriers& barriers_;
  const int half_, warp_, lane_;
  Ring<Shape::kQStages> q_;
  Ring<Shape::kKStages> k_;
  Ring<Shape::kVStages> v_;
};

}  // namespace attune::attention::fa3
