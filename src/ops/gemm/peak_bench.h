// What this machine could do at most: the ceilings that benchmarks compare with.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace attune::ops::bench {

inline constexpr int kPeakSteps = 1 << 20;

// Each runs kPeakSteps rounds of 12 independent chains of multiply-adds; returns a value to keep.
inline float fma_chains_avx2() {
  __m256 a[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) a[i] = _mm256_set1_ps(1.0f + i);
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (int s = 0; s < kPeakSteps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) {
      a[i] = _mm256_fmadd_ps(a[i], x, y);
      asm volatile("" : "+x"(a[i]));
    }
  }
  __m256 sum = a[0];
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) sum = _mm256_add_ps(sum, a[i]);
  return _mm256_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) inline float fma_chains_avx512() {
  __m512 a[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) a[i] = _mm512_set1_ps(1.0f + i);
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  for (int s = 0; s < kPeakSteps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) {
      a[i] = _mm512_fmadd_ps(a[i], x, y);
      asm volatile("" : "+v"(a[i]));
    }
  }
  __m512 sum = a[0];
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) sum = _mm512_add_ps(sum, a[i]);
  return _mm512_cvtss_f32(sum);
}

template <typename Fn>
double best_seconds(int repeats, Fn&& fn) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    fn();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// FLOP/s of all threads together.
inline double fma_peak(base::ThreadPool& pool, bool avx512) {
  volatile float keep = 0;
  const double seconds = best_seconds(15, [&] {
    pool.run([&](int, int) { keep = avx512 ? fma_chains_avx512() : fma_chains_avx2(); });
  });
  return 2.0 * (avx512 ? 16 : 8) * 12 * kPeakSteps * pool.size() / seconds;
}

// Bytes/s when all threads read 96 MiB together.
inline double read_bandwidth(base::ThreadPool& pool) {
  constexpr int64_t kBytes = 96 << 20, kPiece = 64 << 10;
  std::vector<float> data(kBytes / 4, 1.0f);
  volatile float keep = 0;
  const double seconds = best_seconds(15, [&] {
    pool.parallel_for(kBytes / kPiece, 8, [&](int64_t begin, int64_t end) {
      const float* p = data.data() + begin * kPiece / 4;
      __m256 s[4] = {};
      for (int64_t i = 0; i < (end - begin) * kPiece / 4; i += 32)
        for (int u = 0; u < 4; ++u) s[u] = _mm256_add_ps(s[u], _mm256_loadu_ps(p + i + 8 * u));
      keep = _mm256_cvtss_f32(_mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3])));
    });
  });
  return kBytes / seconds;
}

}  // namespace attune::ops::bench
