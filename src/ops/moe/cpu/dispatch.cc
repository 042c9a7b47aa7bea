// Pairs of tokens and experts: into the experts' order, and back.
#include <algorithm>
#include <cstring>

#include "ops/cpu_kernels.h"
#include "ops/simd/vec.h"

namespace attune::ops::cpu {

// A counting sort. On one thread: some nanoseconds a pair.
void moe_sort(const MoeSortParams& p, Stream&) {
  const int64_t pairs = int64_t{p.tokens} * p.top_k;
  std::fill_n(p.offsets, p.experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++p.offsets[p.ids[i] + 1];
  for (int32_t e = 0; e < p.experts; ++e) p.offsets[e + 1] += p.offsets[e];
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t row = p.offsets[p.ids[i]]++;
    p.row_of_pair[i] = row;
    p.token_of_row[row] = static_cast<int32_t>(i / p.top_k);
  }
  // Each offset has moved to its expert's end, which is the next one's begin.
  std::copy_backward(p.offsets, p.offsets + p.experts, p.offsets + p.experts + 1);
  p.offsets[0] = 0;
}

void copy_rows(const CopyRowsParams& p, Stream& stream) {
  for_rows(stream, p.count, 2 * p.row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(static_cast<char*>(p.out) + i * p.row_bytes,
                  static_cast<const char*>(p.x) + p.rows[i] * p.ldx,
                  static_cast<size_t>(p.row_bytes));
  });
}

void moe_combine(const MoeCombineParams& p, Stream& stream) {
  const int64_t row_bytes = int64_t{p.n} * 4 * (p.top_k + 2);
  for_rows(stream, p.tokens, row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = p.out + t * p.ldo;
      for (int32_t j = 0; j < p.top_k; ++j) {
        const float* y = p.y + int64_t{p.row_of_pair[t * p.top_k + j]} * p.n;
        const float weight = p.weights[t * p.top_k + j];
        const simd::Vec w = simd::set1(weight);
        int32_t i = 0;
        for (; i + simd::kLanes <= p.n; i += simd::kLanes)
          simd::store(out + i, simd::fma(w, simd::load(y + i), simd::load(out + i)));
        if (i < p.n) {
          const simd::Mask m = simd::first(p.n - i);
          simd::store(out + i, simd::fma(w, simd::load(y + i, m), simd::load(out + i, m)), m);
        }
      }
    }
  });
}

}  // namespace attune::ops::cpu
