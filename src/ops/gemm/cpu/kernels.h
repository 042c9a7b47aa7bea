// What a unit of one instruction-set level offers to linear.cc. The units (kernels_LEVEL.cc) are
// compiled with that level's flags and must not emit any inline function that another unit may
// share: they include this, packed.h and intrinsics only.
#pragma once

#include <cstdint>

#include "ops/gemm/cpu/packed.h"

namespace attune::ops::gemm {

// One product y (+)= x w^T (+ bias), as the kernels see it.
struct Product {
  const uint8_t* weight;  // panels: packed.h
  int64_t panel_bytes;
  int32_t n, k, m;
  const void* x;  // [m, k] float, or bfloat16 for the kernels of bfloat16 activations
  int64_t ldx;
  float* y;  // [m, n]
  int64_t ldy;
  const float* bias;  // [n] or null
  bool accumulate;
  // [m, k / 32], sums of x over each 32 k: for `fused`, and for `tiled` with bfloat16 x.
  const float* x_sums;
};

struct Kernels {
  // All rows of panels [panel_begin, panel_end); few rows. Weights are decoded in registers.
  void (*fused)(const Product&, int64_t panel_begin, int64_t panel_end);
  // Rows [row_begin, row_end) of pairs [pair_begin, pair_end) of panels: a stretch of a pair is
  // decoded into a buffer on the stack, then multiplied with all the rows. A row's result depends
  // on nothing but that row.
  void (*tiled)(const Product&, int64_t pair_begin, int64_t pair_end, int64_t row_begin,
                int64_t row_end);
};

// sums[i] = sum of x[32 i .. 32 i + 31], for i < k / 32; x is float, or bfloat16.
void block_sums(const void* x, int32_t k, float* sums);
void block_sums_bf16(const void* x, int32_t k, float* sums);  // avx512_bf16

// By layout; null functions for a layout that the activation type does not go with. The bf16 ones
// take bfloat16 x.
const Kernels& avx2_kernels(Layout layout);
const Kernels& avx512_kernels(Layout layout);
const Kernels& avx512_bf16_kernels(Layout layout);

}  // namespace attune::ops::gemm
