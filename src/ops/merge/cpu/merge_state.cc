#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu_kernels.h"

namespace attune::ops::cpu {
namespace {

// a += b, with their LSEs. Neither exp overflows, and an LSE of -inf is never subtracted from
// itself.
void merge_row(float* __restrict a, float* a_lse, const float* __restrict b, float b_lse,
               int32_t n) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  if (b_lse == kNone) return;
  if (*a_lse == kNone) {
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

void merge_state(const MergeStateParams& p, Stream& stream) {
  ATTUNE_CHECK(p.dtype == DType::kF32);
  const int64_t n = p.v_dim;
  const auto* part = static_cast<const float*>(p.part);
  auto* out = static_cast<float*>(p.out);
  for_rows(stream, int64_t{p.tokens} * p.heads, 12 * n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      merge_row(out + r * n, p.lse + r, part + r * n, p.part_lse[r], p.v_dim);
  });
}

}  // namespace attune::ops::cpu
