// The kernel of decode_load.cuh: what its multiplying warps do.
#pragma once

#include "attention/backends/fa3/cuda/decode_load.cuh"

namespace attune::attention::fa3 {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ void consumer_barrier() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

// exp2(x - top); 0 where x, and so maybe top, is -inf.
__device__ __forceinline__ float weight_of(float x, float top) {
  return x == -INFINITY ? 0.0f : exp2_fast(x - top);
}

// Sums over some keys of a row: the highest score (base 2), the sum of weights, and two dims of the
// weighted values.
struct Part {
  float top = -INFINITY, sum = 0;
  float2 out = {0, 0};
};
// The only way in which parts become one where bits shall not depend on who adds them: an empty
// part changes nothing.
__device__ __forceinline__ void fold(Part& a, const Part& b) {
  const float top = fmaxf(a.top, b.top), f = weight_of(a.top, top), g = weight_of(b.top, top);
  a.sum = __fmaf_rn(a.sum, f, __fmul_rn(b.sum, g));
  a.out.x = __fmaf_rn(a.out.x, f, __fmul_rn(b.out.x, g));
  a.out.y = __fmaf_rn(a.out.y, f, __fmul_rn(b.out.y, g));
  a.top = top;
}

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
      if (sm_.items[place].head < 0) return;
      begin(place);
      for (int key = begin_ & ~(kTile - 1); key < end_; key += kTile) {
        // By position, so that a row's sums do not depend on where an item begins.
        if (S::kTilesAtOnce == 1 || key / kTile % S::kTilesAtOnce == turn_)
          tile(key, stage, parity);
        if (++stage == kStages) stage = 0, parity ^= 1;
        const int next = key + kTile;
        if (a_.fixed > 0 && next < end_ && next % a_.fixed == 0) flush(false);
      }
      flush(true);
      release(&sm_.item_empty[place]);
      if (++place == S::kItems) place = 0, place_parity ^= 1;
    }
  }

 private:
  static constexpr int kKeyTiles = S::kWarpKeys / 16, kDimTiles = S::kDim / 16;
  using Scores = float[kKeyTiles][S::kColumns][4];
  // Of lane 4g + t: keys g (elements 0, 1) and g + 8 (2, 3), query rows 2t and 2t + 1 of each 8.

  __device__ void release(uint64_t* barrier) {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(barrier);
  }

  // The item's own words stay in shared memory, where they are read again when they are needed.
  __device__ void begin(int place) {
    item_ = &sm_.items[place];
    begin_ = item_->words[5];
    end_ = item_->words[6];
    all_ = block().seen_by_all(a_.layer.window);
    flushes_ = 0;
    load_q(sm_.q[place], item_->words[4]);
    reset();
  }
  __device__ int word(int i) const { return item_->words[i]; }
  __device__ BlockRows block() const {
    return {word(1), word(2), word(3), word(4), a_.group, a_.causal, a_.at.tree_mask != nullptr};
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

  __device__ void tile(int key, int stage, uint32_t parity) {
    Scores scores;
    barrier_wait(&sm_.full[stage][0], parity);
    multiply_keys(shared_address(sm_.tiles[stage][0]), scores);
    release(&sm_.empty[stage][0]);
    scale(scores);
    if (key < all_.begin || key + kTile > all_.end) mask(key, scores);
    uint32_t weights[kKeyTiles][S::kColumns][2];
    soften(scores, weights);
    barrier_wait(&sm_.full[stage][1], parity);
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
        const int row = first_key_ + n * 16 + (lane_ & 15);
        const int chunk = (S::kF8 ? k : k * 2) + (lane_ >> 4);
        uint32_t a[4];
        load_matrices(a, keys + (chunk >> 3) * S::kPartBytes + swizzled<S>(row, chunk & 7));
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
        for (int i = 0; i < 4; ++i)  // tanh(x) = 1 - 2 / (exp(2x) + 1)
          scores[n][c][i] =
              outer * (1 - __fdividef(2, exp2_fast(fminf(scores[n][c][i] * inner, 100)) + 1));
  }

  __device__ void mask(int key, Scores& scores) const {
    const int first = key + first_key_ + lane_ / 4, window = a_.layer.window;
    const BlockRows rows = block();
    const uint64_t* words = rows.tree ? a_.at.tree_mask + word(0) : nullptr;
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
  __device__ void soften(Scores& scores, uint32_t (&weights)[kKeyTiles][S::kColumns][2]) {
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
    constexpr int kChunks = S::kRowBytes / 16;
    for (int i = lane_; i < S::kWarpKeys * S::kParts * kChunks; i += 32) {
      const int chunk = i % kChunks, rest = i / kChunks;
      const int row = first_key_ + rest % S::kWarpKeys, part = rest / S::kWarpKeys;
      if (key + row < begin_ || key + row >= end_)
        *reinterpret_cast<uint4*>(values + part * S::kPartBytes + swizzled<S>(row, chunk)) = {};
    }
    fence_copies();
    __syncwarp();
  }

  __device__ void multiply_values(uint32_t values,
                                  const uint32_t (&weights)[kKeyTiles][S::kColumns][2]) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const int row = first_key_ + n * 16 + (lane_ & 7) + (lane_ >> 4 << 3);
#pragma unroll
      for (int d = 0; d < kDimTiles; d += S::kF8 ? 2 : 1) {
        const int chunk = (S::kF8 ? d : d * 2) + (lane_ >> 3 & 1);
        uint32_t b[4];
        load_transposed(b, values + (chunk >> 3) * S::kPartBytes + swizzled<S>(row, chunk & 7));
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
    const int rows = word(4);
    const bool split = word(9) > 1;
#pragma unroll
    for (int pass = 0; pass < S::kColumns * 2; ++pass) {
      if (pass * kMergedRows >= rows) break;  // of all warps
      put(pass);
      consumer_barrier();
      for (int i = threadIdx.x; i < S::kRowWarps * kMergedRows * kPairs; i += kConsumers) {
        const int row_warp = i / (kMergedRows * kPairs), row4 = i / kPairs % kMergedRows;
        const int row = row_warp * 8 * S::kColumns + pass * kMergedRows + row4;
        if (row < rows) place(merge(row_warp, row4, i % kPairs), row, i % kPairs, last, split);
      }
      consumer_barrier();
    }
    ++flushes_;
    if (last && split) reduce();
    if (!last) reset();
  }

  // Of this warp's rows those from `pass` * 4 on.
  __device__ void put(int pass) {
    const int g = lane_ / 4, t = lane_ % 4 - pass % 2 * 2, c = pass / 2;
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
  __device__ Part merge(int row_warp, int row4, int pair) const {
    constexpr int kOthers = kConsumerWarps / S::kRowWarps;
    Part all;
#pragma unroll
    for (int w = 0; w < kOthers; ++w)
      all.top = fmaxf(all.top, sm_.top[row_warp + w * S::kRowWarps][row4]);
#pragma unroll
    for (int w = 0; w < kOthers; ++w) {
      const int warp = row_warp + w * S::kRowWarps;
      const float f = weight_of(sm_.top[warp][row4], all.top);
      const float2 x = *reinterpret_cast<const float2*>(&sm_.out[warp][row4][pair * 2]);
      all.sum += f * sm_.sum[warp][row4];
      all.out.x += f * x.x, all.out.y += f * x.y;
    }
    return all;
  }

  static constexpr int kPairs = S::kDim / 2;       // of dims, each a thread's
  static constexpr int kPartStride = S::kDim + 4;  // floats of a row of partial results
  __device__ float* partial(int slot, int row) const {
    return a_.partials + ((int64_t{slot} * a_.heads + item_->head) * S::kRows + row) * kPartStride;
  }
  static __device__ Part read(const float* from, int pair) {
    Part p;
    const float2 ends = __ldcg(reinterpret_cast<const float2*>(from + S::kDim));
    p.top = ends.x, p.sum = ends.y;
    p.out = __ldcg(reinterpret_cast<const float2*>(from) + pair);
    return p;
  }
  static __device__ void write(float* to, const Part& p, int pair) {
    __stcg(reinterpret_cast<float2*>(to) + pair, p.out);
    if (pair == 0) __stcg(reinterpret_cast<float2*>(to + S::kDim), make_float2(p.top, p.sum));
  }

  // A chunk's sums of a row go to the output, to the row's partial results, or, if the item goes
  // on, to where the same thread finds them at the next chunk's end.
  __device__ void place(Part part, int row, int pair, bool last, bool split) {
    if (a_.fixed > 0) {
      auto* kept = reinterpret_cast<float4*>(a_.scratch) +
                   (int64_t{blockIdx.x} * S::kRows + row) * kPairs + pair;
      Part all;
      if (flushes_ > 0) {
        const float4 x = __ldcg(kept);
        all = {x.x, x.y, {x.z, x.w}};
      }
      fold(all, part);
      part = all;
      if (!last) return __stcg(kept, make_float4(part.top, part.sum, part.out.x, part.out.y));
    }
    if (split) return write(partial(word(10) + word(8), row), part, pair);
    store(part, row, pair);
  }

  __device__ void store(Part p, int row, int pair) const {
    const int at = word(3) + row, token = word(0) + at / a_.group;
    const int head = item_->head * a_.group + at % a_.group;
    if (a_.layer.sinks) fold(p, {a_.layer.sinks[head] * kLog2E, 1, {0, 0}});
    const float f = p.sum > 0 ? 1 / p.sum : 0;
    char* to = static_cast<char*>(a_.io.out) +
               (int64_t{token} * a_.io.out_stride + int64_t{head} * S::kDim) * 2;
    reinterpret_cast<uint32_t*>(to)[pair] = pack<false>(p.out.x * f, p.out.y * f);
    if (a_.io.lse && pair == 0)
      a_.io.lse[int64_t{token} * a_.layer.q_heads + head] =
          p.sum > 0 ? (p.top + log2f(p.sum)) * kLn2 : -INFINITY;
  }

  // Whoever arrives last adds up all chunks of the rows, in their order.
  __device__ void reduce() {
    __threadfence();
    consumer_barrier();
    if (threadIdx.x == 0) {
      int* arrived = a_.arrived + int64_t{word(10)} * a_.heads + item_->head;
      sm_.last = atomicAdd(arrived, 1) == word(9) - 1;
      if (sm_.last) *arrived = 0;
      __threadfence();
    }
    consumer_barrier();
    if (!sm_.last) return;
    for (int i = threadIdx.x; i < word(4) * kPairs; i += kConsumers) {
      const int row = i / kPairs, pair = i % kPairs;
      store(a_.fixed > 0 ? fold_all(row, pair) : sum_all(row, pair), row, pair);
    }
  }

  static constexpr int kAtOnce = 16;  // parts on their way
  __device__ void read_parts(Part (&parts)[kAtOnce], int first, int row, int pair) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < word(9)) parts[i] = read(partial(word(10) + first + i, row), pair);
  }
  __device__ Part fold_all(int row, int pair) const {
    Part all;
    for (int first = 0; first < word(9); first += kAtOnce) {
      Part parts[kAtOnce];
      read_parts(parts, first, row, pair);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) fold(all, parts[i]);
    }
    return all;
  }
  // The same with a shorter chain of operations.
  __device__ Part sum_all(int row, int pair) const {
    Part all;
    for (int first = 0; first < word(9); first += kAtOnce) {
      Part parts[kAtOnce], some;
      read_parts(parts, first, row, pair);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) some.top = fmaxf(some.top, parts[i].top);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float f = weight_of(parts[i].top, some.top);
        some.sum += f * parts[i].sum;
        some.out.x += f * parts[i].out.x, some.out.y += f * parts[i].out.y;
      }
      fold(all, some);
    }
    return all;
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

template <typename Kv, int kDim, int kRows, int kStages>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    decode_kernel(const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                  const __grid_constant__ DecodeArgs args) {
  using S = DecodeShape<Kv, kDim, kRows>;
  static_assert(sizeof(DecodeShared<S, kStages>) <= device::kMostSharedBytes);
  extern __shared__ __align__(1024) char memory[];
  auto& sm = *reinterpret_cast<DecodeShared<S, kStages>*>(memory);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s)
      for (int part = 0; part < 2; ++part) {
        barrier_init(&sm.full[s][part]);
        barrier_init(&sm.empty[s][part], S::kReaders);
      }
    for (int i = 0; i < S::kItems; ++i) {
      barrier_init(&sm.item_full[i]);
      barrier_init(&sm.item_empty[i], kConsumerWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    Producer<S, kStages>(args, &k, &v, sm).run();
  } else {
    Consumer<S, kStages>(args, sm).run();
  }
}

}  // namespace attune::attention::fa3
