#include "attention/merge.h"

#include <cmath>
#include <limits>

namespace attune::attention {
namespace {

// a += b, with their LSEs. Neither exp overflows, and an LSE of -inf is never subtracted from
// itself.
void merge_row(float* __restrict a, float* a_lse, const float* __restrict b, float b_lse,
               int32_t n) {
  if (b_lse == -std::numeric_limits<float>::infinity()) return;
  if (*a_lse == -std::numeric_limits<float>::infinity()) {
    for (int32_t i = 0; i < n; ++i) a[i] = b[i];
    *a_lse = b_lse;
    return;
  }
  const float top = *a_lse > b_lse ? *a_lse : b_lse;
  const float wa = std::exp(*a_lse - top), wb = std::exp(b_lse - top);
  const float sum = wa + wb, inv = 1.0f / sum;
  for (int32_t i = 0; i < n; ++i) a[i] = (a[i] * wa + b[i] * wb) * inv;
  *a_lse = top + std::log(sum);
}

}  // namespace

void merge_partials(const Partial* partials, int count, int64_t tokens, int32_t heads,
                    int32_t v_dim, float* out, float* lse) {
  // A row is gathered apart and written last, since out and lse may be one of the partials.
  constexpr int32_t kPiece = 256;
  float row[kPiece];
  for (int64_t r = 0; r < tokens * heads; ++r) {
    float row_lse = -std::numeric_limits<float>::infinity();
    for (int32_t at = 0; at < v_dim; at += kPiece) {
      const int32_t n = v_dim - at < kPiece ? v_dim - at : kPiece;
      for (int32_t i = 0; i < n; ++i) row[i] = 0.0f;
      row_lse = -std::numeric_limits<float>::infinity();
      for (int p = 0; p < count; ++p)
        merge_row(row, &row_lse, partials[p].out + r * v_dim + at, partials[p].lse[r], n);
      for (int32_t i = 0; i < n; ++i) out[r * v_dim + at + i] = row[i];
    }
    lse[r] = row_lse;
  }
}

void merge_into(const float* part, const float* part_lse, int64_t tokens, int32_t heads,
                int32_t v_dim, float* out, float* lse) {
  for (int64_t r = 0; r < tokens * heads; ++r)
    merge_row(out + r * v_dim, lse + r, part + r * v_dim, part_lse[r], v_dim);
}

}  // namespace attune::attention
