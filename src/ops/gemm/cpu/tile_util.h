// What the kernels of all activation types share: cutting rows into tiles, prefetching, and the end
// of a tile. Compiled into each level's unit.
#pragma once

#include "ops/gemm/cpu/kernels.h"
#include "ops/gemm/cpu/lanes.h"

namespace attune::ops::gemm {
#if defined(__AVX512BF16__)
inline namespace avx512_bf16 {
#elif defined(__AVX512F__)
inline namespace avx512 {
#else
inline namespace avx2 {
#endif

// Prefetch this far ahead of what is read: some 15 blocks, about what memory needs to answer.
inline constexpr int kAhead = 4096;

ATTUNE_LANES void prefetch(const uint8_t* p, int bytes) {
#pragma GCC unroll 10
  for (int i = 0; i < bytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + i), _MM_HINT_T0);
}

// The same pointer, its origin hidden from GCC, which would otherwise keep the distances of a row's
// elements from another row's in dozens of registers that it does not have.
template <typename T>
ATTUNE_LANES const T* opaque(const T* p) {
  asm("" : "+r"(p));
  return p;
}

template <int kRows>
ATTUNE_LANES void prefetch_y(const Product& p, int64_t row, int64_t n0) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) __builtin_prefetch(p.y + (row + r) * p.ldy + n0, 1);
}

// sums[row][panel][16] into y at (row, n0). Out of line: it would bloat every kernel.
__attribute__((noinline)) static void finish_rows(const Product& p, int64_t row, int64_t n0,
                                                  const float* sums, int rows, int panels,
                                                  bool first) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < panels; ++c, sums += kPanel) {
      const int64_t column = n0 + c * kPanel;
      const int columns = p.n - column < kPanel ? static_cast<int>(p.n - column) : kPanel;
      if (columns <= 0) continue;
      float* y = p.y + (row + r) * p.ldy + column;
      V16 v = load(sums);
      if (columns == kPanel) {
        if (first && p.bias) v = add(v, load(p.bias + column));
        if (!first || p.accumulate) v = add(v, load(y));
        store(y, v);
      } else {
        if (first && p.bias) v = add(v, load_first(p.bias + column, columns));
        if (!first || p.accumulate) v = add(v, load_first(y, columns));
        store_first(y, v, columns);
      }
    }
  }
}

// Adds the sums of a tile to y, or starts y with them (and the bias) if these are the first k.
template <int kRows, int kPanels>
ATTUNE_LANES void finish(const Product& p, int64_t row, int64_t n0, const V16* sums, bool first) {
  alignas(64) float out[kRows * kPanels * kPanel];
#pragma GCC unroll 32
  for (int i = 0; i < kRows * kPanels; ++i) store(out + i * kPanel, sums[i]);
  finish_rows(p, row, n0, out, kRows, kPanels, first);
}

// The packed weights that come next, to be fetched bit by bit while tiles keep the core busy.
struct Next {
  const uint8_t* at[2];
  int64_t bytes;  // from each
};

// use(row, rows) over [begin, end) in the fewest pieces of at most kRows, of like height.
template <int kRows, typename Use>
ATTUNE_LANES void for_tiles(int64_t begin, int64_t end, const Next& next, Use use) {
  const int64_t rows = end - begin;
  const int64_t pieces = (rows + kRows - 1) / kRows;
  for (int64_t i = 0; i < pieces; ++i) {
    for (const uint8_t* at : next.at)
      for (int64_t b = next.bytes * i / pieces; b < next.bytes * (i + 1) / pieces; b += 64)
        _mm_prefetch(reinterpret_cast<const char*>(at + b), _MM_HINT_T1);
    const int64_t r0 = begin + rows * i / pieces, r1 = begin + rows * (i + 1) / pieces;
    use(r0, r1 - r0);
  }
}

}  // inline namespace
}  // namespace attune::ops::gemm
