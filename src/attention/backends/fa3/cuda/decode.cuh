// The kernel of decode_load.cuh: what its multiplying warps do.
#pragma once

#include "attention/backends/fa3/base2.h"
#include "attention/backends/fa3/cuda/decode_load.cuh"

namespace attune::attention::fa3 {

// Of the warps that multiply (1), or of those that finish items (2).
template <int kBarrier, int kThreads>
__device__ __forceinline__ void role_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// exp2(x - top); 0 where x, and so maybe top, is -inf.
__device__ __forceinline__ float weight_of(float x, float top) {
  return x == -INFINITY ? 0.0f : exp2_fast(x - top);
}

// Sums over some keys of a row: the highest score (base 2), the sum of weights, and four dims of
// the weighted values.
struct Part {
  float top = -INFINITY, sum = 0;
  float4 out = {0, 0, 0, 0};
};
// The only way in which parts become one where bits shall not depend on who adds them: an empty
// part changes nothing.
__device__ __forceinline__ void fold(Part& a, const Part& b) {
  const float top = fmaxf(a.top, b.top), f = weight_of(a.top, top), g = weight_of(b.top, top);
  a.sum = __fmaf_rn(a.sum, f, __fmul_rn(b.sum, g));
  a.out.x = __fmaf_rn(a.out.x, f, __fmul_rn(b.out.x, g));
  a.out.y = __fmaf_rn(a.out.y, f, __fmul_rn(b.out.y, g));
  a.out.z = __fmaf_rn(a.out.z, f, __fmul_rn(b.out.z, g));
  a.out.w = __fmaf_rn(a.out.w, f, __fmul_rn(b.out.w, g));
  a.top = top;
}
__device__ __forceinline__ void add(float4& all, float weight, const float4& x) {
  all.x += weight * x.x, all.y += weight * x.y, all.z += weight * x.z, all.w += weight * x.w;
}

// Where an item's sums go: the output, or partial results that are added up when all are there.
template <typename S>
struct Results {
  const DecodeArgs& a;
  const Item& item;

  static constexpr int kQuads = S::kDim / 4;       // of dims, each a thread's
  static constexpr int kPartStride = S::kDim + 4;  // floats of a row of partial results

  // Of this group of heads' rows, chunk i.
  __device__ float* partial(int i, int row) const {
    const int64_t slot = int64_t{item.chunk.partial + i} * a.heads + item.head;
    return a.partials + (slot * S::kRows + row) * kPartStride;
  }
  __device__ void write(const Part& p, int row, int quad) const {
    float* to = partial(item.chunk.index, row);
    __stcg(reinterpret_cast<float4*>(to) + quad, p.out);
    if (quad == 0) __stcg(reinterpret_cast<float2*>(to + S::kDim), make_float2(p.top, p.sum));
  }

  __device__ void store(Part p, int row, int quad) const {
    const auto [token, head] = token_head(a, item, row);
    if (a.layer.sinks) fold(p, {a.layer.sinks[head] * kLog2E, 1, {0, 0, 0, 0}});
    const float f = p.sum == 0 ? 0 : __fdividef(1, p.sum);
    char* to =
        static_cast<char*>(a.io.out) + (token * a.io.out_stride + int64_t{head} * S::kDim) * 2;
    reinterpret_cast<uint2*>(to)[quad] = {pack<false>(p.out.x * f, p.out.y * f),
                                          pack<false>(p.out.z * f, p.out.w * f)};
    if (a.io.lse && quad == 0)
      a.io.lse[token * a.layer.q_heads + head] =
          p.sum == 0 ? -INFINITY : (p.top + __log2f(p.sum)) * kLn2;
  }

  // After this item's partial results are written: whoever arrives last adds up all of the rows',
  // in their order, a warp each row. For the warps that finish items; `last` is theirs.
  __device__ void arrive(int me, int32_t& last) const {
    int* arrived = a.arrived + int64_t{item.chunk.partial} * a.heads + item.head;
    if (me == 0) last = add_and_order(arrived) == item.chunk.count - 1;
    role_barrier<2, S::kFinishers>();
    if (!last) return;
    if (me == 0) *arrived = 0;
    for (int row = me / 32; row < item.chunk.rows; row += S::kFinishers / 32) {
      const Part all = a.fixed > 0 ? folded(row, me % 32) : added_up(row, me % 32);
      if (me % 32 < kQuads) store(all, row, me % 32);
    }
  }

 private:
  struct Parts {
    const float* from;
    int64_t stride;
    int count;
    __device__ float2 ends(int i) const {
      if (i >= count) return {-INFINITY, 0};
      return __ldcg(reinterpret_cast<const float2*>(from + i * stride + S::kDim));
    }
    __device__ float4 out(int i, int quad) const {
      if (i >= count || quad >= kQuads) return {0, 0, 0, 0};
      return __ldcg(reinterpret_cast<const float4*>(from + i * stride) + quad);
    }
  };
  __device__ Parts parts(int row) const {
    return {partial(0, row), int64_t{a.heads} * S::kRows * kPartStride, item.chunk.count};
  }

  __device__ Part folded(int row, int quad) const {
    constexpr int kAtOnce = 8;
    const Parts from = parts(row);
    Part all, some[kAtOnce];
    for (int first = 0; first < from.count; first += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float2 ends = from.ends(first + i);
        some[i] = {ends.x, ends.y, from.out(first + i, quad)};
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) fold(all, some[i]);
    }
    return all;
  }

  // The same with a shorter chain of operations: each lane weighs one part.
  __device__ Part added_up(int row, int quad) const {
    constexpr int kAtOnce = 16;
    const Parts from = parts(row);
    Part all;
    for (int first = 0; first < from.count; first += kAtOnce) {
      const float2 ends = from.ends(first + quad % kAtOnce);
      float4 out[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) out[i] = from.out(first + i, quad);
      Part some{ends.x};
      for (int step = 1; step < kAtOnce; step *= 2)
        some.top = fmaxf(some.top, __shfl_xor_sync(0xffffffff, some.top, step));
      const float weight = weight_of(ends.x, some.top);
      some.sum = weight * ends.y;
      for (int step = 1; step < kAtOnce; step *= 2)
        some.sum += __shfl_xor_sync(0xffffffff, some.sum, step);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) add(some.out, __shfl_sync(0xffffffff, weight, i), out[i]);
      fold(all, some);
    }
    return all;
  }
};

template <typename S, int kStages>
class Consumer {
 public:
  using Shared = DecodeShared<S, kStages>;
  __device__ Consumer(const DecodeArgs& a, Shared& sm)
      : a_(a),
        sm_(sm),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        first_row_(warp_ % S::kRowWarps * 8 * S::kColumns),
        first_key_(warp_ / S::kRowWarps % S::kKeyWarps * S::kWarpKeys),
        turn_(warp_ / S::kReaders) {}

  __device__ void run() {
    device::pdl_wait();
    device::pdl_trigger();
    int place = 0, stage = 0;
    uint32_t place_parity = 0, parity = 0;
    while (true) {
      barrier_wait(&sm_.item_full[place], place_parity);
      if (sm_.items[place].head < 0) return release(&sm_.item_done[place]);
      begin(place);
      bool ended = false;
      for (int key = begin_ & ~(kTile - 1); !ended; key += kTile) {
        if (key < end_) {
          // By position, so that a row's sums do not depend on where an item begins.
          if (S::kTilesAtOnce == 1 || key / kTile % S::kTilesAtOnce == turn_)
            tile(key, stage, parity);
          if (++stage == kStages) stage = 0, parity ^= 1;
        }
        const int next = key + kTile;
        ended = next >= end_;
        if (ended || (a_.fixed > 0 && next % a_.fixed == 0)) flush(ended);
      }
      release(&sm_.item_done[place]);
      if (++place == S::kItems) place = 0, place_parity ^= 1;
    }
  }

 private:
  static constexpr int kTile = S::kTile, kQuads = Results<S>::kQuads;
  static constexpr int kKeyTiles = S::kWarpKeys / 16, kDimTiles = S::kDim / 16;
  using Scores = float[kKeyTiles][S::kColumns][4];
  // Of lane 4g + t: keys g (elements 0, 1) and g + 8 (2, 3), query rows 2t and 2t + 1 of each 8.

  __device__ void release(uint64_t* barrier) {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(barrier);
  }

  // The item itself stays in shared memory, where it is read again when it is needed.
  __device__ void begin(int place) {
    item_ = &sm_.items[place];
    begin_ = item_->chunk.begin;
    end_ = item_->chunk.end;
    all_ = rows_of(a_, item_->chunk).seen_by_all(a_.layer.window);
    flushes_ = 0;
    load_q(sm_.q[place], item_->chunk.rows);
    reset();
  }

  __device__ void reset() {
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      for (int n = 0; n < kDimTiles; ++n)
        for (int i = 0; i < 4; ++i) out_[n][c][i] = 0;
      for (int i = 0; i < 2; ++i) top_[c][i] = -INFINITY, sum_[c][i] = 0;
    }
  }

  // Rows that are not there are 0.
  __device__ void load_q(const char* q, int rows) {
    const int t = lane_ % 4;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      const int row = first_row_ + c * 8 + lane_ / 4;
      const char* at = q + row * S::kQStride;
#pragma unroll
      for (int k = 0; k < S::kDim / 16; ++k) {
        uint32_t low = 0, high = 0;
        if (row < rows && S::kF8) {  // the order of K's bytes in load_matrices()
          const uint2 pair = *reinterpret_cast<const uint2*>(at + k * 32 + t * 8);
          low = pair.x, high = pair.y;
        } else if (row < rows) {
          low = *reinterpret_cast<const uint32_t*>(at + k * 32 + t * 4);
          high = *reinterpret_cast<const uint32_t*>(at + k * 32 + t * 4 + 16);
        }
        q_[k][c][0] = S::kF16 ? to_half(low) : low;
        q_[k][c][1] = S::kF16 ? to_half(high) : high;
      }
    }
  }

  // Until keys or values are there. In a ring of odd length a place's last tile was the other
  // warps': as long as that has not come, its parity is what this one is waited for with.
  __device__ void wait_for(int stage, int part, uint32_t parity) {
    if constexpr (S::kTilesAtOnce == 2 && kStages % 2 == 1)
      barrier_wait(&sm_.empty[stage][part], parity ^ 1);
    barrier_wait(&sm_.full[stage][part], parity);
  }

  __device__ void tile(int key, int stage, uint32_t parity) {
    Scores scores;
    wait_for(stage, 0, parity);
    multiply_keys(shared_address(sm_.tiles[stage][0]), scores);
    release(&sm_.empty[stage][0]);
    scale(scores);
    if (key < all_.begin || key + kTile > all_.end) mask(key, scores);
    uint32_t weights[kKeyTiles][S::kColumns][2];
    online_softmax(scores, weights);
    wait_for(stage, 1, parity);
    if (key < begin_ || key + kTile > end_) clear_values(key, sm_.tiles[stage][1]);
    multiply_values(shared_address(sm_.tiles[stage][1]), weights);
    release(&sm_.empty[stage][1]);
  }

  __device__ void multiply_keys(uint32_t keys, Scores& scores) const {
    // Of a single product two sums, of even and odd steps: half as long a chain.
    constexpr bool kTwo = kKeyTiles * S::kColumns == 1;
    Scores more;
    Scores& odd = kTwo ? more : scores;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
      for (int c = 0; c < S::kColumns; ++c)
        for (int i = 0; i < 4; ++i) scores[n][c][i] = odd[n][c][i] = 0;
#pragma unroll
    for (int k = 0; k < S::kDim / 16; k += S::kF8 ? 2 : 1)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const KeyRow<S> row(first_key_ + n * 16 + (lane_ & 15), S::unit_shift(a_));
        uint32_t a[4];
        load_matrices(a, keys + row.piece((S::kF8 ? k : k * 2) + (lane_ >> 4)));
        if constexpr (S::kF8) {  // two steps of 16 dims in 16 bytes each
          uint32_t low[4], high[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            low[i] = from_e4m3(static_cast<uint16_t>(a[i]));
            high[i] = from_e4m3(static_cast<uint16_t>(a[i] >> 16));
          }
#pragma unroll
          for (int c = 0; c < S::kColumns; ++c) {
            multiply<true>(scores[n][c], {low[0], low[1], high[0], high[1]}, q_[k][c][0],
                           q_[k][c][1]);
            multiply<true>(odd[n][c], {low[2], low[3], high[2], high[3]}, q_[k + 1][c][0],
                           q_[k + 1][c][1]);
          }
        } else {
#pragma unroll
          for (int c = 0; c < S::kColumns; ++c)
            multiply<S::kF16>((k & 1 ? odd : scores)[n][c], a, q_[k][c][0], q_[k][c][1]);
        }
      }
    if constexpr (kTwo)
      for (int i = 0; i < 4; ++i) scores[0][0][i] += odd[0][0][i];
  }

  // To base 2.
  __device__ void scale(Scores& scores) const {
    const float cap = a_.layer.soft_cap;
    if (cap <= 0) {
      const float by = a_.layer.scale * kLog2E;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
        for (int c = 0; c < S::kColumns; ++c)
          for (int i = 0; i < 4; ++i) scores[n][c][i] *= by;
      return;
    }
    const float inner = __fdividef(a_.layer.scale, cap) * 2 * kLog2E, outer = cap * kLog2E;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
      for (int c = 0; c < S::kColumns; ++c)
        for (int i = 0; i < 4; ++i)
          scores[n][c][i] = outer * tanh_half_base2(scores[n][c][i] * inner);
  }

  __device__ void mask(int key, Scores& scores) const {
    const int first = key + first_key_ + lane_ / 4, window = a_.layer.window;
    const BlockRows rows = rows_of(a_, item_->chunk);
    const uint64_t* words = rows.tree ? a_.at.tree_mask + item_->chunk.q_start : nullptr;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const RowRange range(rows, first_row_ + c * 8 + lane_ % 4 * 2 + i, window, words);
        for (int n = 0; n < kKeyTiles; ++n)
          for (int half = 0; half < 2; ++half)
            if (!range.sees(rows, first + n * 16 + half * 8, window, words))
              scores[n][c][half * 2 + i] = -INFINITY;
      }
  }

  // Online softmax of these keys; scores become weights of the operands' type, transposed.
  __device__ void online_softmax(Scores& scores, uint32_t (&weights)[kKeyTiles][S::kColumns][2]) {
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      float f[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float top = top_[c][i];
        for (int n = 0; n < kKeyTiles; ++n)
          top = fmaxf(top, fmaxf(scores[n][c][i], scores[n][c][i + 2]));
        for (int step = 4; step < 32; step *= 2)
          top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
        const float base = top == -INFINITY ? 0 : top;
        f[i] = exp2_fast(top_[c][i] - base);
        top_[c][i] = top;
        sum_[c][i] *= f[i];
        for (int n = 0; n < kKeyTiles; ++n)
          for (int j = i; j < 4; j += 2) {
            scores[n][c][j] = exp2_fast(scores[n][c][j] - base);
            sum_[c][i] += scores[n][c][j];
          }
      }
      for (int n = 0; n < kKeyTiles; ++n)
        for (int i = 0; i < 2; ++i)
          weights[n][c][i] =
              transposed(pack<S::kF16>(scores[n][c][i * 2], scores[n][c][i * 2 + 1]));
      if (__any_sync(0xffffffff, f[0] != 1 || f[1] != 1))
#pragma unroll
        for (int n = 0; n < kDimTiles; ++n)
          for (int i = 0; i < 4; ++i) out_[n][c][i] *= f[i & 1];
    }
  }

  // Values outside the chunk may be anything, also what a weight of 0 does not make 0.
  __device__ void clear_values(int key, char* values) const {
    constexpr int kPieces = S::kParts * S::kRowBytes / 16;
    for (int i = lane_; i < S::kWarpKeys * kPieces; i += 32) {
      const int row = first_key_ + i / kPieces;
      if (key + row < begin_ || key + row >= end_)
        *reinterpret_cast<uint4*>(values +
                                  KeyRow<S>(row, S::unit_shift(a_)).piece(i % kPieces)) = {};
    }
    fence_async_proxy();
    __syncwarp();
  }

  __device__ void multiply_values(uint32_t values,
                                  const uint32_t (&weights)[kKeyTiles][S::kColumns][2]) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const KeyRow<S> row(first_key_ + n * 16 + (lane_ & 7) + (lane_ >> 4 << 3), S::unit_shift(a_));
#pragma unroll
      for (int d = 0; d < kDimTiles; d += S::kF8 ? 2 : 1) {
        uint32_t b[4];
        load_transposed(b, values + row.piece((S::kF8 ? d : d * 2) + (lane_ >> 3 & 1)));
        if constexpr (S::kF8) {  // 16 dims in 16 bytes: even ones are rows 0 to 7
          uint32_t even[4], odd[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t pair = __byte_perm(b[i], 0, 0x3120);
            even[i] = from_e4m3(static_cast<uint16_t>(pair));
            odd[i] = from_e4m3(static_cast<uint16_t>(pair >> 16));
          }
#pragma unroll
          for (int c = 0; c < S::kColumns; ++c)
            for (int i = 0; i < 2; ++i)
              multiply<true>(out_[d + i][c], {even[i], odd[i], even[i + 2], odd[i + 2]},
                             weights[n][c][0], weights[n][c][1]);
        } else {
#pragma unroll
          for (int c = 0; c < S::kColumns; ++c)
            multiply<S::kF16>(out_[d][c], b, weights[n][c][0], weights[n][c][1]);
        }
      }
    }
  }

  // The end of a chunk: four rows of each warp at a time through shared memory.
  __device__ void flush(bool last) {
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c)
      for (int i = 0; i < 2; ++i)
        for (int step = 4; step < 32; step *= 2)
          sum_[c][i] += __shfl_xor_sync(0xffffffff, sum_[c][i], step);
    const Results<S> results{a_, *item_};
    const int rows = item_->chunk.rows;
    const bool split = item_->chunk.count > 1;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c)
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        const int first = c * 8 + half * kMergedRows;
        if (first >= rows) break;  // of all warps
        put(c, half);
        role_barrier<1, kConsumers>();
        for (int i = threadIdx.x; i < S::kRowWarps * kMergedRows * kQuads; i += kConsumers) {
          const int row_warp = i / (kMergedRows * kQuads), row4 = i / kQuads % kMergedRows;
          const int row = row_warp * 8 * S::kColumns + first + row4, quad = i % kQuads;
          if (row < rows) place(results, merge(row_warp, row4, quad), row, quad, last, split);
        }
        role_barrier<1, kConsumers>();
      }
    ++flushes_;
    if (!last) reset();
  }

  // Of this warp's rows four: the first or second half of the eight of column c.
  __device__ void put(int c, int half) {
    const int g = lane_ / 4, t = lane_ % 4 - half * 2;
    if (t != 0 && t != 1) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = t * 2 + i;
      if (g == 0) sm_.top[warp_][row] = top_[c][i], sm_.sum[warp_][row] = sum_[c][i];
      float* to = sm_.out[warp_][row];
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        if constexpr (S::kF8) {
          *reinterpret_cast<float2*>(to + n * 16 + g * 2) = {out_[n][c][i], out_[n][c][i + 2]};
        } else {
          to[n * 16 + g] = out_[n][c][i];
          to[n * 16 + g + 8] = out_[n][c][i + 2];
        }
      }
    }
  }

  // What the warps along the keys have of a row.
  __device__ Part merge(int row_warp, int row4, int quad) const {
    constexpr int kOthers = kConsumerWarps / S::kRowWarps;
    Part all;
#pragma unroll
    for (int w = 0; w < kOthers; ++w)
      all.top = fmaxf(all.top, sm_.top[row_warp + w * S::kRowWarps][row4]);
#pragma unroll
    for (int w = 0; w < kOthers; ++w) {
      const int warp = row_warp + w * S::kRowWarps;
      const float weight = weight_of(sm_.top[warp][row4], all.top);
      all.sum += weight * sm_.sum[warp][row4];
      add(all.out, weight, reinterpret_cast<const float4*>(sm_.out[warp][row4])[quad]);
    }
    return all;
  }

  // A chunk's sums of a row go to the output, to the row's partial results, or, if the item goes
  // on, to where the same thread finds them at the next chunk's end.
  __device__ void place(const Results<S>& results, Part part, int row, int quad, bool last,
                        bool split) {
    if (a_.fixed > 0) {
      auto* kept = reinterpret_cast<float4*>(a_.scratch) +
                   ((int64_t{blockIdx.x} * S::kRows + row) * kQuads + quad) * 2;
      Part all;
      if (flushes_ > 0) {
        const float4 ends = __ldcg(kept);
        all = {ends.x, ends.y, __ldcg(kept + 1)};
      }
      fold(all, part);
      part = all;
      if (!last) {
        __stcg(kept, make_float4(part.top, part.sum, 0, 0));
        return __stcg(kept + 1, part.out);
      }
    }
    split ? results.write(part, row, quad) : results.store(part, row, quad);
  }

  const DecodeArgs& a_;
  Shared& sm_;
  const int warp_, lane_, first_row_, first_key_, turn_;
  // Of the item.
  const Item* item_ = nullptr;
  KeyRange all_{};
  int begin_ = 0, end_ = 0, flushes_ = 0;
  uint32_t q_[S::kDim / 16][S::kColumns][2];
  float out_[kDimTiles][S::kColumns][4], top_[S::kColumns][2], sum_[S::kColumns][2];
};

// The end of split items, so that the multiplying warps need not wait for memory.
template <typename S, int kStages>
__device__ void finish_items(const DecodeArgs& a, DecodeShared<S, kStages>& sm, int me) {
  device::pdl_wait();
  device::pdl_trigger();
  int place = 0;
  uint32_t parity = 0;
  while (true) {
    barrier_wait(&sm.item_done[place], parity);
    const Results<S> results{a, sm.items[place]};
    if (results.item.head < 0) return;
    if (results.item.chunk.count > 1) results.arrive(me, sm.last);
    role_barrier<2, S::kFinishers>();
    if (me == 0) barrier_arrive(&sm.item_empty[place]);
    if (++place == S::kItems) place = 0, parity ^= 1;
  }
}

template <typename Kv, int kDim, int kRows, bool kGather, int kStages>
__global__ void __launch_bounds__(DecodeShape<Kv, kDim, kRows, kGather>::kThreads, 1)
    decode_kernel(const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                  const __grid_constant__ DecodeArgs args) {
  using S = DecodeShape<Kv, kDim, kRows, kGather>;
  static_assert(sizeof(DecodeShared<S, kStages>) <= device::kMostSharedBytes);
  extern __shared__ __align__(1024) char memory[];
  auto& sm = *reinterpret_cast<DecodeShared<S, kStages>*>(memory);
  if (threadIdx.x == 0) sm.init();
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32) - kConsumerWarps;
  if constexpr (S::kUneven) warp < 0 ? more_registers<160>() : fewer_registers<96>();
  if (warp < 0) {
    Consumer<S, kStages>(args, sm).run();
  } else if (warp < S::kLoaderWarps) {
    Loader<S, kStages>(args, &k, &v, sm, warp).run();
  } else {
    finish_items<S, kStages>(args, sm,
                             static_cast<int>(threadIdx.x) - (S::kThreads - S::kFinishers));
  }
}

}  // namespace attune::attention::fa3
