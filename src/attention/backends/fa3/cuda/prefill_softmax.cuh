// What rows of queries see, and their weights.
#pragma once

#include "attention/backends/fa3/cuda/prefill_shape.cuh"

namespace attune::attention::fa3 {

// What two rows of a thread (h = 0, 1: kGroupRows' row 16 warp + lane / 4 + 8h) see, and what all
// rows of the warpgroup see.
struct MaskBounds {
  int end[2], begin[2];  // keys
  int all_end, all_begin;

  __device__ MaskBounds(const PrefillParams& p, const PrefillItem& item, int half, int row) {
    const PrefillBlock& b = item.block;
    const int first = b.position + half * p.tile_tokens;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int position = first + PrefillRow(p, row + 8 * h).token;
      end[h] = p.causal ? min(position + 1, b.kv_len) : b.kv_len;
      begin[h] = p.window > 0 ? position - p.window + 1 : 0;
    }
    all_end = p.causal ? min(first + 1, b.kv_len) : b.kv_len;
    all_begin = p.window > 0 ? first + p.tile_tokens - p.window : 0;
  }
  __device__ bool sees_all(int tile) const {
    return (tile + 1) * kPrefillKeys <= all_end && tile * kPrefillKeys >= all_begin;
  }
};

// Online softmax (arXiv:1805.02867) of a thread's two rows. A maximum is kept until it is passed by
// 2^8: weights and sums stay far from their types' limits, and sums are rarely multiplied. All are
// 2^kLift times as large: binary16 ends at 2^16, and where a weight is small it has but multiples
// of 2^-24.
template <int kLift>
struct PrefillSoftmax {
  float top[2], sum[2];  // the sum is of the thread's own columns

  __device__ void begin() {
    top[0] = top[1] = -INFINITY;
    sum[0] = sum[1] = 0;
  }
  // Scores to weights; `keep` is what the sums so far are to be multiplied with.
  template <int kColumns>
  __device__ __forceinline__ void online_softmax(float (&s)[kColumns / 2], float to_log2,
                                                 float (&keep)[2]) {
    float most[2];
    highest<kColumns>(s, most);
    float base[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool passed = (most[h] - top[h]) * to_log2 > 8.0f;
      keep[h] = passed ? exp2_fast((top[h] - most[h]) * to_log2) : 1.0f;
      top[h] = passed ? most[h] : top[h];
      base[h] = top[h] == -INFINITY ? 0.0f : -log2_unit(h, to_log2);
    }
    float more[2][2] = {};
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * h + e];
          x = exp2_fast(fmaf(x, to_log2, base[h]));
          more[h][e] += x;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = fmaf(sum[h], keep[h], more[h][0] + more[h][1]);
  }
  // What a row's weights and sums are relative to, as its logarithm.
  __device__ __forceinline__ float log2_unit(int h, float to_log2) const {
    return top[h] * to_log2 - static_cast<float>(kLift);
  }
  // The assembler moves a wait for products ahead of all that does not need it, which then no
  // longer runs beside them. A branch on the sums, which never have these bits, holds it back.
  __device__ __forceinline__ void stay_before_wait() const {
    constexpr uint32_t kNever = 0x7f812345;
    if (__float_as_uint(sum[0]) == kNever || __float_as_uint(sum[1]) == kNever)
      asm volatile("nanosleep.u32 1;");
  }
  // The rows' highest scores, or some number below `top`. Numbers above 0 are in the order of their
  // bits as integers, of which one instruction takes the highest of three; where a row has none
  // and no `top` above, it is gone over again.
  template <int kColumns>
  __device__ __forceinline__ void highest(const float (&s)[kColumns / 2], float (&most)[2]) const {
    int high[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int of[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        of[i] = __float_as_int(s[2 * h + i]);
#pragma unroll
        for (int j = 1 + i; j < kColumns / 8; j += 2)
          of[i] = __vimax3_s32(of[i], __float_as_int(s[4 * j + 2 * h]),
                               __float_as_int(s[4 * j + 2 * h + 1]));
      }
      high[h] = max(of[0], of[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      high[h] = max(high[h], __shfl_xor_sync(0xffffffff, high[h], 1));
      high[h] = max(high[h], __shfl_xor_sync(0xffffffff, high[h], 2));
      most[h] = __int_as_float(high[h]);
    }
    const bool unknown = (high[0] <= 0 && top[0] < 0) || (high[1] <= 0 && top[1] < 0);
    if (!__any_sync(0xffffffff, unknown)) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = s[2 * h];
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
        most[h] = fmaxf(most[h], fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffff, most[h], 1));
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffff, most[h], 2));
    }
  }
  // Of the whole row.
  __device__ void finish() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffff, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffff, sum[h], 2);
    }
  }
};

}  // namespace attune::attention::fa3
