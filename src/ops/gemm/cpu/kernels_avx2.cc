#include "ops/gemm/cpu/float_kernels.h"

namespace attune::ops::gemm {

const Kernels& avx2_kernels(Layout layout) {
  return float_kernels(layout);
}

void block_sums(const void* floats, int32_t k, float* sums) {
  const float* x = static_cast<const float*>(floats);
  for (int32_t b = 0; b < k / kBlock; ++b, x += kBlock) {
    __m256 s = _mm256_add_ps(_mm256_add_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)),
                             _mm256_add_ps(_mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)));
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    sums[b] = _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
  }
}

}  // namespace attune::ops::gemm
