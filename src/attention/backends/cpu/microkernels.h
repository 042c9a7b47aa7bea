// The two matrix products of attention and the softmax between them, for a few rows and one block
// of keys. Included by kernel_impl.h only: all is in an unnamed namespace, so that each instruction
// set has its own. No standard library functions here: an inline one compiled for AVX-512 could be
// the one that the linker keeps for all.
#pragma once

#include <cstdint>

#include "attention/backends/cpu/kernel.h"
#include "ops/simd/vec.h"

namespace attune::attention::cpu {
namespace {

using ops::simd::kLanes;
using ops::simd::Vec;
namespace simd = ops::simd;

#define ATTUNE_UNROLL _Pragma("GCC unroll 16")

// acc[r][v] += x(r) * y(v). The side with fewer operands is read once and kept, since registers are
// short: 3 x 4 accumulators, 3 kept and 1 passing are all 16 of AVX2.
template <int MR, int NV, typename X, typename Y>
ATTUNE_SIMD void add_outer_product(Vec (&acc)[MR][NV], X x, Y y) {
  if constexpr (MR < NV) {
    Vec kept[MR];
    ATTUNE_UNROLL for (int r = 0; r < MR; ++r) kept[r] = x(r);
    ATTUNE_UNROLL for (int v = 0; v < NV; ++v) {
      const Vec passing = y(v);
      ATTUNE_UNROLL for (int r = 0; r < MR; ++r) acc[r][v] = simd::fma(kept[r], passing, acc[r][v]);
    }
  } else {
    Vec kept[NV];
    ATTUNE_UNROLL for (int v = 0; v < NV; ++v) kept[v] = y(v);
    ATTUNE_UNROLL for (int r = 0; r < MR; ++r) {
      const Vec passing = x(r);
      ATTUNE_UNROLL for (int v = 0; v < NV; ++v) acc[r][v] = simd::fma(passing, kept[v], acc[r][v]);
    }
  }
}

// Row r's scores of NV vectors of keys: S[r][v][j] = sum_d Q[r][d] * Kt[v][d][j], d ascending.
template <int MR, int NV>
ATTUNE_SIMD void score_block(const float* q, int32_t dim, const float* kt, float* s) {
  Vec acc[MR][NV];
  ATTUNE_UNROLL for (int r = 0; r < MR; ++r) {
    ATTUNE_UNROLL for (int v = 0; v < NV; ++v) acc[r][v] = simd::zero();
  }
  for (int32_t d = 0; d < dim; ++d)
    add_outer_product(
        acc, [&](int r) __attribute__((always_inline)) { return simd::set1(q[r * dim + d]); },
        [&](int v)
            __attribute__((always_inline)) { return simd::load(kt + (v * dim + d) * kLanes); });
  ATTUNE_UNROLL for (int r = 0; r < MR; ++r) {
    ATTUNE_UNROLL for (int v = 0; v < NV; ++v) simd::store(s + r * kBlock + v * kLanes, acc[r][v]);
  }
}

struct ValueArgs {
  const float* p;             // weights, row stride kBlock
  const char* const* v_rows;  // by key, float32
  int begin, end;             // keys
  const float* correction;    // by row; 0: o holds nothing yet
  float* o;                   // row stride `stride`
  int32_t stride;
  const char* const* next;  // V rows to read ahead, or null; of `elem` bytes an element
  int64_t elem;
};

// O[r][j] = O[r][j] * correction[r] + sum_k P[r][k] * V[k][j], k ascending in [begin, end).
template <int MR, int NV>
ATTUNE_SIMD void value_block(const ValueArgs& a, int32_t column) {
  Vec acc[MR][NV];
  ATTUNE_UNROLL for (int r = 0; r < MR; ++r) {
    const float* o = a.o + r * a.stride + column;
    const Vec c = simd::set1(a.correction[r]);
    const bool fresh = a.correction[r] == 0.0f;
    ATTUNE_UNROLL for (int v = 0; v < NV; ++v) acc[r][v] =
        fresh ? simd::zero() : simd::load(o + v * kLanes) * c;
  }
  const float* const p = a.p;
  for (int k = a.begin; k < a.end; ++k) {
    if (a.next)
      for (int64_t at = 0; at < NV * kLanes * a.elem; at += 64)
        _mm_prefetch(a.next[k] + column * a.elem + at, _MM_HINT_T0);
    const float* row = reinterpret_cast<const float*>(a.v_rows[k]) + column;
    add_outer_product(
        acc, [&](int r) __attribute__((always_inline)) { return simd::set1(p[r * kBlock + k]); },
        [&](int v) __attribute__((always_inline)) { return simd::load(row + v * kLanes); });
  }
  ATTUNE_UNROLL for (int r = 0; r < MR; ++r) {
    ATTUNE_UNROLL for (int v = 0; v < NV; ++v)
        simd::store(a.o + r * a.stride + column + v * kLanes, acc[r][v]);
  }
}

// Vectors per step for MR rows: enough accumulators to hide the latency of an fma, few enough to
// stay in registers (16 with AVX2, 32 with AVX-512).
template <int MR>
inline constexpr int kWidth = MR == 1                   ? (kLanes == 8 ? 8 : 4)
                              : MR <= 3 || kLanes == 16 ? 4
                                                        : 2;

template <int MR, int NV>
void score_rows(const float* q, int32_t dim, const float* kt, int vectors, float* s) {
  int v = 0;
  for (; v + NV <= vectors; v += NV)
    score_block<MR, NV>(q, dim, kt + int64_t{v} * dim * kLanes, s + v * kLanes);
  if constexpr (NV > 1)
    if (v < vectors)
      score_rows<MR, NV / 2>(q, dim, kt + int64_t{v} * dim * kLanes, vectors - v, s + v * kLanes);
}

template <int MR, int NV>
void value_rows(const ValueArgs& a, int32_t column) {
  for (; column + NV * kLanes <= a.stride; column += NV * kLanes) value_block<MR, NV>(a, column);
  if constexpr (NV > 1)
    if (column < a.stride) value_rows<MR, NV / 2>(a, column);
}

inline constexpr int kRowGroup = 6;  // rows that share a pass over K or V

// fn.operator()<MR>(first row), in steps of kRowGroup rows and one of the rest.
template <typename Fn>
ATTUNE_SIMD void for_row_groups(int32_t rows, Fn&& fn) {
  int32_t r = 0;
  for (; r + kRowGroup <= rows; r += kRowGroup) fn.template operator()<kRowGroup>(r);
  switch (rows - r) {
    case 1:
      return fn.template operator()<1>(r);
    case 2:
      return fn.template operator()<2>(r);
    case 3:
      return fn.template operator()<3>(r);
    case 4:
      return fn.template operator()<4>(r);
    case 5:
      return fn.template operator()<5>(r);
  }
}

// tanh(x) to a few ulp: by its series near 0, where 1 - 2 / (e^2x + 1) cancels.
ATTUNE_SIMD Vec tanh(Vec x) {
  const Vec one = simd::set1(1.0f);
  const Vec e = simd::exp(x + x);
  const Vec far = one - simd::set1(2.0f) / (e + one);
  const Vec z = x * x;
  Vec q = simd::set1(-1382.0f / 155925.0f);
  q = simd::fma(q, z, simd::set1(62.0f / 2835.0f));
  q = simd::fma(q, z, simd::set1(-17.0f / 315.0f));
  q = simd::fma(q, z, simd::set1(2.0f / 15.0f));
  q = simd::fma(q, z, simd::set1(-1.0f / 3.0f));
  const Vec near = simd::fma(x * z, q, x);
  return simd::select(simd::less(z, simd::set1(0.35f * 0.35f)), near, far);
}

constexpr float kMinusInf = -__builtin_inff();

// The softmax of a block runs in three passes over its rows, so that the latencies of one row's
// reductions hide behind the next ones'.

// Largest of s[begin, end). The rest of the whole vectors around it becomes -inf.
ATTUNE_SIMD float block_max(float* s, int begin, int end) {
  const int first = begin / kLanes * kLanes;
  for (int j = first; j < begin; ++j) s[j] = kMinusInf;
  for (; end % kLanes != 0; ++end) s[end] = kMinusInf;
  Vec top = simd::load(s + first);
  for (int j = first + kLanes; j < end; j += kLanes) top = simd::max(top, simd::load(s + j));
  return simd::hmax(top);
}

// For n rows: m becomes the larger of m and `correction`, and correction exp(old m - new m). The
// shift is the new m, or finite where no key was seen yet, so that -inf less it stays -inf.
ATTUNE_SIMD void advance_max(float* m, float* correction, float* shift, int32_t n) {
  const auto advance = [](Vec old, Vec block, Vec * next, Vec * by) __attribute__((always_inline)) {
    *next = simd::max(old, block);
    *by = simd::max(*next, simd::set1(-__FLT_MAX__));
    return simd::exp(old - *by);
  };
  Vec next, by;
  int32_t r = 0;
  for (; r + kLanes <= n; r += kLanes) {
    const Vec c = advance(simd::load(m + r), simd::load(correction + r), &next, &by);
    simd::store(m + r, next);
    simd::store(shift + r, by);
    simd::store(correction + r, c);
  }
  if (r == n) return;
  const simd::Mask tail = simd::first(n - r);
  const Vec c = advance(simd::load(m + r, tail), simd::load(correction + r, tail), &next, &by);
  simd::store(m + r, next, tail);
  simd::store(shift + r, by, tail);
  simd::store(correction + r, c, tail);
}

// s becomes exp(s - shift) on the whole vectors around [begin, end); returns the sum.
ATTUNE_SIMD float exp_and_sum(float* s, int begin, int end, float shift) {
  const Vec by = simd::set1(shift);
  Vec sum = simd::zero();
  for (int j = begin / kLanes * kLanes; j < end; j += kLanes) {
    const Vec w = simd::exp(simd::load(s + j) - by);
    simd::store(s + j, w);
    sum = sum + w;
  }
  return simd::hsum(sum);
}

}  // namespace
}  // namespace attune::attention::cpu
