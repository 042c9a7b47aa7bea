// How a weight lies in a GPU's memory: shared by pack.cc, which writes it, and the kernels.
//
//   kF32, kBF16: [n, k], row-major
//   the others:  tiles of 16 rows below one another (the last padded with zero rows), a tile a run
//                of blocks of 64 k (the last padded with zeros): see CodeBlock
//
// A block holds codes in the order in which a warp's lanes hand them to mma.m16n8k16 as its 16-row
// operand, so that one 16-byte load of a lane is its part of four products. A weight is
// d * (code - offset) + m. Codes of 8 bits are two planes of nibbles, upper ones first.
//   lane 4g + t of a plane: four words, word s for k 16s .. 16s + 15; its nibble 2p + h + 4e is
//   row g + 8h, k 16s + 8p + 2t + e   (p, h, e in {0, 1})
// Behind the planes lie the scales, as binary16.
//
// d and m are those of the file, rounded to binary16 where it has products of two numbers: exact
// for q4_0, q4_1, q5_0, q5_1 and q8_0, within 2^-11 of each scale for the K-quants.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

#ifdef __CUDACC__
#define ATTUNE_HOST_DEVICE __host__ __device__
#else
#define ATTUNE_HOST_DEVICE
#endif

namespace attune::ops::gemm {

enum class CudaLayout : int32_t {
  kF32,
  kBF16,
  kCode4,      // offset 0;   (d, m) of 32 k: half2 [16 rows][2]          q4_0, q4_1, q4_K
  kCode8,      // offset 128; d of 32 k:      half  [16 rows][2]          q8_0, q5_0
  kCode8Min,   // offset 128; (d, m) of 32 k: half2 [16 rows][2]          q5_1, q5_K
  kCode8Fine,  // offset 128; d of 16 k:      half  [16 rows][4]          q6_K
  kCount,
};

inline constexpr int kTileRows = 16;
inline constexpr int kBlockK = 64;
inline constexpr int kPlaneBytes = 512;

struct CodeBlock {
  int planes = 0;    // of nibbles; 0: no codes
  int group = 32;    // k of a scale
  bool min = false;  // m beside each d
  ATTUNE_HOST_DEVICE constexpr int scale_bytes() const {
    return kTileRows * (kBlockK / group) * (min ? 4 : 2);
  }
  ATTUNE_HOST_DEVICE constexpr int bytes() const { return planes * kPlaneBytes + scale_bytes(); }
};

ATTUNE_HOST_DEVICE constexpr CodeBlock code_block(CudaLayout layout) {
  switch (layout) {
    case CudaLayout::kCode4:
      return {.planes = 1, .min = true};
    case CudaLayout::kCode8:
      return {.planes = 2};
    case CudaLayout::kCode8Min:
      return {.planes = 2, .min = true};
    case CudaLayout::kCode8Fine:
      return {.planes = 2, .group = 16};
    default:
      return {};
  }
}

ATTUNE_HOST_DEVICE constexpr int64_t blocks_of(int64_t k) {
  return (k + kBlockK - 1) / kBlockK;
}

ATTUNE_HOST_DEVICE constexpr int64_t tiles_of(int64_t n) {
  return (n + kTileRows - 1) / kTileRows;
}

ATTUNE_HOST_DEVICE constexpr int64_t weight_bytes(CudaLayout layout, int64_t n, int64_t k) {
  if (layout == CudaLayout::kF32) return n * k * 4;
  if (layout == CudaLayout::kBF16) return n * k * 2;
  return tiles_of(n) * blocks_of(k) * code_block(layout).bytes();
}

}  // namespace attune::ops::gemm
