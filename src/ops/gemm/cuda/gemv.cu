// A CTA on every multiprocessor takes an equal share of the weight's tiles of 16 rows. Its warps
// cut a tile along k into units that each requests for itself, some ahead of what it multiplies;
// the first are requested before the wait for the kernel before, so that the memory works on across
// the boundary of two products. The tensor cores take 16 rows of weights as one operand and the
// rows of x as the other: that leaves the other units idle, whatever the number of rows up to 16.
// The warps' sums are added in their order, so that the result is the same in every run.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <type_traits>

#include "device/cuda/launch.cuh"
#include "ops/gemm/cuda/gemv.h"
#include "ops/gemm/cuda/mma.cuh"

namespace attune::ops::gemm {
namespace {

#ifndef KW
#define KW 8
#define KU 2
#endif
constexpr int kWarps = KW;
constexpr int kThreads = kWarps * 32;
constexpr int kSaved = 4;      // tiles whose sums are kept while x passes in parts
constexpr int kMaxStages = 8;  // of a warp
constexpr int kBarrierBytes = kWarps * kMaxStages * 8;

struct Shape {
  GemvParams p;
  int32_t stages;
  int32_t x_part;    // k of x in shared memory at a time: all, or a multiple of all warps' units
  int32_t x_stride;  // bytes
  CUtensorMap map;   // of bfloat16 weights, [n, k]
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- asynchronous copies into shared memory ----

__device__ __forceinline__ void barrier_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)));
}
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
#endif
}
// A weight passes once: it shall not push out of the L2 what is read again.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
__device__ __forceinline__ void copy_bytes(void* to, const void* from, uint32_t bytes,
                                           uint64_t* barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, int column, int row,
                                         uint64_t* barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::"
      "cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}

// ---- formats: what a unit is, and its product ----

// The products' narrow operand: rows of x, or zeros. Shared memory has each 32 k of a row in the
// order in which one 16-byte load of lane 4g + t is its part of two products.
template <int kTiles>
struct Columns {
  const uint8_t* row[kTiles];  // at the lane's 16 bytes
  bool valid[kTiles];
  __device__ __forceinline__ uint4 load(int tile, int k) const {
    return valid[tile] ? *reinterpret_cast<const uint4*>(row[tile] + k * 2) : uint4{};
  }
};

// Eight k of x from natural order, 8 i .. 8 i + 7 of a row.
__device__ __forceinline__ void put_by_pairs(uint8_t* row, int i, uint4 v) {  // k 2t and 8 further
  auto* to = reinterpret_cast<uint32_t*>(row + i / 4 * 64 + i % 4 * 4);
  to[0] = v.x, to[4] = v.y, to[8] = v.z, to[12] = v.w;
}
__device__ __forceinline__ void put_by_fours(uint8_t* row, int i, uint4 v) {  // k 4t .. and 16 on
  auto* to = reinterpret_cast<uint2*>(row + i / 4 * 64 + i % 2 * 32 + i % 4 / 2 * 8);
  to[0] = {v.x, v.y}, to[2] = {v.z, v.w};
}
__device__ __forceinline__ void put_as_is(uint8_t* row, int i, uint4 v) {
  reinterpret_cast<uint4*>(row)[i] = v;
}

// Boxes of 16 rows by 64 k, in which the 16-byte pieces of a row are exchanged by its number, so
// that a column of pieces lies in all banks.
template <bool kBulk>
struct Bf16Format {
  static constexpr int kBoxBytes = kTileRows * kBlockK * 2;
  static constexpr int kUnitBlocks = KU;
  static constexpr int kUnitBytes = kUnitBlocks * kBoxBytes;

  static __device__ __forceinline__ void put(uint8_t* row, int i, uint4 v) {
    if (kBulk) {
      put_by_pairs(row, i, v);
    } else {
      put_as_is(row, i, v);
    }
  }

  static __device__ __forceinline__ void request(const Shape& s, int tile, int block, int blocks,
                                                 uint8_t* to, uint64_t* barrier, uint64_t policy) {
    barrier_expect(barrier, blocks * kBoxBytes);  // what lies past n and k counts, as zeros
    for (int i = 0; i < blocks; ++i)
      copy_box(to + i * kBoxBytes, &s.map, (block + i) * kBlockK, tile * kTileRows, barrier,
               policy);
  }

  // Blocks of 64 k from `block` on; unit: in shared memory, or nothing to read from p.w.
  // x_k: where they begin in the columns.
  template <int kTiles>
  static __device__ __forceinline__ void multiply(const GemvParams& p, int tile, int block,
                                                  int blocks, const uint8_t* unit, int x_k,
                                                  const Columns<kTiles>& x, int lane,
                                                  float (&sum)[kTiles][4]) {
    if constexpr (kBulk) {
      const int row = lane % 16, swap = row & 7;
      const uint32_t at = shared_address(unit) + row * 128;
#pragma unroll 2
      for (int j = 0; j < blocks * 2; ++j) {
        uint32_t a[2][4];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const int piece = (j % 2 * 4 + s * 2 + lane / 16) ^ swap;
          asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                       : "=r"(a[s][0]), "=r"(a[s][1]), "=r"(a[s][2]), "=r"(a[s][3])
                       : "r"(at + j / 2 * kBoxBytes + piece * 16)
                       : "memory");
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const uint4 b = x.load(i, x_k + j * 32);
          mma(sum[i], a[0][0], a[0][1], a[0][2], a[0][3], b.x, b.y);
          mma(sum[i], a[1][0], a[1][1], a[1][2], a[1][3], b.z, b.w);
        }
      }
    } else {
      const int64_t row = tile * int64_t{kTileRows} + lane / 4, last = p.n - 1;
      const uint8_t* upper = p.w + min(row, last) * p.k * 2 + lane % 4 * 16;
      const uint8_t* lower = p.w + min(row + 8, last) * p.k * 2 + lane % 4 * 16;
#pragma unroll 4
      for (int j = 0; j < min(blocks * 2, p.k / 32 - block * 2); ++j) {
        const int64_t byte = (block * 2 + j) * 64;
        const uint4 u = *reinterpret_cast<const uint4*>(upper + byte);
        const uint4 v = *reinterpret_cast<const uint4*>(lower + byte);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const uint4 b = x.load(i, x_k + j * 32);
          mma(sum[i], u.x, v.x, u.y, v.y, b.x, b.y);
          mma(sum[i], u.z, v.z, u.w, v.w, b.z, b.w);
        }
      }
    }
  }
};

template <CudaLayout kLayout>
struct CodeFormat {
  static constexpr CodeBlock kBlock = code_block(kLayout);
  static constexpr int kUnitBlocks = 2 * KU;
  static constexpr int kUnitBytes = kUnitBlocks * kBlock.bytes();

  static __device__ __forceinline__ void put(uint8_t* row, int i, uint4 v) {
    put_by_fours(row, i, v);
  }
  static __device__ __forceinline__ const uint8_t* at(const GemvParams& p, int tile, int block) {
    return p.w + (tile * blocks_of(p.k) + block) * kBlock.bytes();
  }
  static __device__ __forceinline__ void request(const Shape& s, int tile, int block, int blocks,
                                                 uint8_t* to, uint64_t* barrier, uint64_t policy) {
    barrier_expect(barrier, blocks * kBlock.bytes());
    copy_bytes(to, at(s.p, tile, block), blocks * kBlock.bytes(), barrier, policy);
  }

  // d and m of a row's k 16 s ..
  static __device__ __forceinline__ float2 scale(const uint8_t* scales, int row, int s) {
    const int i = row * (kBlockK / kBlock.group) + s * 16 / kBlock.group;
    if constexpr (kBlock.min) return halves(*reinterpret_cast<const uint32_t*>(scales + i * 4));
    return {__half2float(*reinterpret_cast<const __half*>(scales + i * 2)), 0.0f};
  }

  // Sums of codes and of x over a group come from the tensor cores; the scales are applied to them.
  template <int kTiles>
  static __device__ __forceinline__ void multiply(const GemvParams& p, int tile, int block,
                                                  int blocks, const uint8_t* unit, int x_k,
                                                  const Columns<kTiles>& x, int lane,
                                                  float (&sum)[kTiles][4]) {
    const uint8_t* from = unit ? unit : at(p, tile, block);
#pragma unroll 2
    for (int j = 0; j < blocks; ++j)
      multiply_block(from + j * kBlock.bytes(), x_k + j * kBlockK, x, lane, sum);
  }

  template <int kTiles>
  static __device__ __forceinline__ void multiply_block(const uint8_t* block, int x_k,
                                                        const Columns<kTiles>& x, int lane,
                                                        float (&sum)[kTiles][4]) {
    // Codes come as 128 + nibble, those of 8 bits as 16 times that and that, and 128 more.
    constexpr float kOffset = kBlock.planes == 1 ? kNibbleBias : 17 * kNibbleBias + 128;
    constexpr int kSteps = kBlock.group / 16;
    uint32_t words[kBlock.planes][4];
#pragma unroll
    for (int i = 0; i < kBlock.planes; ++i) {
      const uint4 v = *reinterpret_cast<const uint4*>(block + i * kPlaneBytes + lane * 16);
      words[i][0] = v.x, words[i][1] = v.y, words[i][2] = v.z, words[i][3] = v.w;
    }
    const uint8_t* scales = block + kBlock.planes * kPlaneBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 b[kTiles];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) b[i] = x.load(i, x_k + half * 32);
#pragma unroll
      for (int s0 = 0; s0 < 2; s0 += kSteps) {
        float part[kTiles][kBlock.planes][4] = {}, x_sum[kTiles][4] = {};
#pragma unroll
        for (int s = s0; s < s0 + kSteps; ++s) {
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            const uint32_t b0 = s == 0 ? b[i].x : b[i].z, b1 = s == 0 ? b[i].y : b[i].w;
            mma(x_sum[i], kOnes, kOnes, kOnes, kOnes, b0, b1);
#pragma unroll
            for (int plane = 0; plane < kBlock.planes; ++plane) {
              const uint32_t word = words[plane][half * 2 + s];
              mma(part[i][plane], nibbles(word, 0), nibbles(word, 1), nibbles(word, 2),
                  nibbles(word, 3), b0, b1);
            }
          }
        }
        float2 dm[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          dm[h] = scale(scales, lane / 4 + 8 * h, half * 2 + s0);
          dm[h].y = fmaf(-kOffset, dm[h].x, dm[h].y);
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float codes = part[i][0][e];
            if constexpr (kBlock.planes == 2) codes = fmaf(codes, 16.0f, part[i][1][e]);
            sum[i][e] = fmaf(dm[e / 2].x, codes, sum[i][e]);
            sum[i][e] = fmaf(dm[e / 2].y, x_sum[i][e], sum[i][e]);
          }
        }
      }
    }
  }
};

// ---- the kernel ----

// k0 .. k0 + k of x into shared memory, zeros up to a block's end.
template <typename Format>
__device__ void load_x(const GemvParams& p, int k0, int k, uint8_t* to, int stride) {
  const int vectors = static_cast<int>(blocks_of(k)) * kBlockK / 8;
  const auto* x = static_cast<const uint16_t*>(p.x);
  const bool aligned = (reinterpret_cast<uint64_t>(x) | (p.ldx * 2)) % 16 == 0;
#pragma unroll 4
  for (int at = threadIdx.x; at < p.m * vectors; at += kThreads) {
    const int row = at / vectors, i = at % vectors;
    const uint16_t* from = x + row * p.ldx + k0 + i * 8;
    union {
      uint4 v;
      uint16_t e[8];
    } u{};
    if (i * 8 < k) {
      if (aligned) {
        u.v = *reinterpret_cast<const uint4*>(from);
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) u.e[j] = from[j];
      }
    }
    Format::put(to + row * stride, i, u.v);
  }
}

// Adds the warps' sums of a tile and writes its part of y.
template <int kTiles>
__device__ void finish(const GemvParams& p, int tile, const float* sums) {
  for (int i = threadIdx.x; i < kTileRows * p.m; i += kThreads) {
    const int row = i % kTileRows, column = i / kTileRows;
    const int64_t n = tile * int64_t{kTileRows} + row;
    if (n >= p.n) continue;
    const int lane = row % 8 * 4 + column % 8 / 2, part = row / 8 * 2 + column % 2;
    const float* from = sums + (column / 8 * 32 + lane) * 4 + part;
    float v = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v += from[w * kTiles * 128];
    if (p.bias) v += p.bias[n];
    if (p.y_bf16) {
      static_cast<__nv_bfloat16*>(p.y)[column * p.ldy + n] = __float2bfloat16(v);
    } else {
      float* y = static_cast<float*>(p.y) + column * p.ldy + n;
      *y = p.accumulate ? *y + v : v;
    }
  }
}

// The units of one warp in their order: while a part of x is there it meets up to kSaved tiles, and
// of each every kWarps-th unit of that part.
template <int kUnitBlocks>
struct Walk {
  int end, blocks, part_blocks, warp;  // tiles; blocks of k, of a part of x
  int group, tile, part, block;

  __device__ Walk(int first, int end, int blocks, int part_blocks, int warp)
      : end(end),
        blocks(blocks),
        part_blocks(part_blocks),
        warp(warp),
        group(first),
        tile(first),
        part(0),
        block(warp * kUnitBlocks) {
    skip();
  }
  __device__ bool done() const { return tile >= end; }
  __device__ int count() const { return min(kUnitBlocks, blocks - block); }
  __device__ void next() {
    block += kWarps * kUnitBlocks;
    skip();
  }

 private:
  __device__ void skip() {
    while (!done() && block >= min(part + part_blocks, blocks)) {
      if (++tile == min(group + kSaved, end)) {
        tile = group;
        part += part_blocks;
        if (part >= blocks) {
          part = 0;
          group += kSaved;
          tile = group;
        }
      }
      block = part + warp * kUnitBlocks;
    }
  }
};

template <typename Format, int kTiles, bool kBulk>
__global__ void __launch_bounds__(kThreads, 2) gemv_kernel(const __grid_constant__ Shape s) {
#if __CUDA_ARCH__ < 900
  if (kBulk) return;  // never launched there
#endif
  extern __shared__ __align__(1024) uint8_t shared[];
  const GemvParams& p = s.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  device::pdl_trigger();

  const int ring_bytes = s.stages * Format::kUnitBytes;
  uint8_t* ring = shared + warp * ring_bytes;
  uint64_t* there = reinterpret_cast<uint64_t*>(shared + kWarps * ring_bytes) + warp * kMaxStages;
  uint8_t* x_shared = shared + kWarps * ring_bytes + kBarrierBytes;
  float* sums = reinterpret_cast<float*>(x_shared + p.m * s.x_stride);
  float* saved = sums + 2 * kWarps * kTiles * 128;

  const int64_t tiles = tiles_of(p.n);
  const int first = static_cast<int>(tiles * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(tiles * (blockIdx.x + 1) / gridDim.x);
  const int blocks = static_cast<int>(blocks_of(p.k));
  const int part_blocks = static_cast<int>(blocks_of(s.x_part));
  Walk<Format::kUnitBlocks> ahead(first, end, blocks, part_blocks, warp);
  const uint64_t policy = evict_first();
  const auto request = [&](int stage) {  // of one thread
    Format::request(s, ahead.tile, ahead.block, ahead.count(), ring + stage * Format::kUnitBytes,
                    there + stage, policy);
  };
  if (kBulk) {
    if (lane == 0) {
      for (int i = 0; i < s.stages; ++i) barrier_init(there + i);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    for (int i = 0; i < s.stages && !ahead.done(); ++i, ahead.next())
      if (lane == 0) request(i);
  }
  device::pdl_wait();

  Columns<kTiles> x;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    x.valid[i] = lane / 4 + 8 * i < p.m;
    x.row[i] = x_shared + (lane / 4 + 8 * i) * s.x_stride + lane % 4 * 16;
  }
  int stage = 0, buffer = 0;
  uint32_t parity = 0;
  for (int group = first; group < end; group += kSaved) {
    for (int part = 0; part < blocks; part += part_blocks) {
      const int part_end = min(part + part_blocks, blocks);
      if (group == first || part_blocks < blocks) {
        __syncthreads();  // nobody needs the part before
        load_x<Format>(p, part * kBlockK, min(part_end * kBlockK, p.k) - part * kBlockK, x_shared,
                       s.x_stride);
        __syncthreads();
      }
      for (int tile = group; tile < min(group + kSaved, end); ++tile) {
        float4* mine = reinterpret_cast<float4*>(saved) +
                       (((tile - group) * kWarps + warp) * kTiles * 32 + lane);
        float sum[kTiles][4];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const float4 v = part == 0 ? float4{} : mine[i * 32];
          sum[i][0] = v.x, sum[i][1] = v.y, sum[i][2] = v.z, sum[i][3] = v.w;
        }
        for (int block = part + warp * Format::kUnitBlocks; block < part_end;
             block += kWarps * Format::kUnitBlocks) {
          const uint8_t* unit = nullptr;
          if (kBulk) {
            unit = ring + stage * Format::kUnitBytes;
            barrier_wait(there + stage, parity);
          }
          Format::template multiply<kTiles>(p, tile, block,
                                            min(Format::kUnitBlocks, part_end - block), unit,
                                            (block - part) * kBlockK, x, lane, sum);
          if (kBulk) {
            __syncwarp();  // all have read it
            if (!ahead.done()) {
              if (lane == 0) request(stage);
              ahead.next();
            }
            if (++stage == s.stages) {
              stage = 0;
              parity ^= 1;
            }
          }
        }
        const bool last = part_end == blocks;
        float4* to =
            last ? reinterpret_cast<float4*>(sums) + ((buffer * kWarps + warp) * kTiles * 32 + lane)
                 : mine;
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
          to[i * 32] = float4{sum[i][0], sum[i][1], sum[i][2], sum[i][3]};
        if (!last) continue;
        __syncthreads();
        // The buffer is written again after the next tile's barrier, by when all have read it.
        finish<kTiles>(p, tile, sums + buffer * kWarps * kTiles * 128);
        buffer ^= 1;
      }
    }
  }
}

// Of the driver, which the runtime opens. Null where it has none.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                       &result) != cudaSuccess)
    return nullptr;
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
}

void set_map(const GemvParams& p, CUtensorMap* map) {
  static const auto encode = tensor_map_encoder();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(p.k), static_cast<cuuint64_t>(p.n)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(p.k) * 2};
  const cuuint32_t box[] = {kBlockK, kTileRows}, steps[] = {1, 1};
  encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint8_t*>(p.w), sizes, strides, box,
         steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
         CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <typename Format, int kTiles, bool kBulk>
void launch(const GemvParams& p, const device::DeviceInfo& info, device::Stream& stream,
            const GemvTuning& tuning) {
  // With half of what a multiprocessor has, the next product's ring fills beside this one's.
  constexpr int kHalf = 113 * 1024, kAll = 227 * 1024;
  constexpr int kFewest = 2;
  constexpr int kStage = kBulk ? kWarps * Format::kUnitBytes : 0;
  const int limit = kBulk ? kAll : 96 * 1024;  // sm_89 has no more
  const auto stride = [](int64_t k) {          // so that the lanes' loads meet no bank twice
    return static_cast<int32_t>(blocks_of(k) * kBlockK * 2 + 64);
  };
  constexpr int kSums = 2 * kWarps * kTiles * 512, kKept = kSaved * kWarps * kTiles * 512;
  constexpr int kPart = kWarps * Format::kUnitBlocks * kBlockK;
  Shape s{.p = p, .stages = 0, .x_part = p.k, .x_stride = stride(p.k)};
  int64_t fixed = kBarrierBytes + kSums + int64_t{p.m} * s.x_stride;
  if (fixed + kFewest * kStage > limit) {
    s.x_part = kPart;
    fixed = kBarrierBytes + kSums + kKept;
    while (fixed + int64_t{p.m} * stride(s.x_part + kPart) + kFewest * kStage <= limit)
      s.x_part += kPart;
    s.x_stride = stride(s.x_part);
    fixed += int64_t{p.m} * s.x_stride;
  }
  if constexpr (kBulk) {
    int64_t room = fixed + kFewest * kStage <= kHalf ? kHalf : kAll;
    if (tuning.shared_bytes > 0) room = std::max(fixed + kStage, int64_t{tuning.shared_bytes});
    s.stages = static_cast<int32_t>(
        std::min<int64_t>((room - fixed) / kStage, tuning.stages ? tuning.stages : kMaxStages));
    if constexpr (std::is_same_v<Format, Bf16Format<true>>) set_map(p, &s.map);
  }
  const int ctas = tuning.ctas_per_sm ? tuning.ctas_per_sm : kBulk ? 1 : 2;
  device::launch_kernel(
      stream, "gemv",
      {.grid = static_cast<uint32_t>(std::min<int64_t>(info.multiprocessors * ctas, tiles_of(p.n))),
       .block = kThreads,
       .shared_bytes = static_cast<uint32_t>(fixed + s.stages * kStage)},
      {{"n", p.n}, {"k", p.k}, {"m", p.m}, {"stages", s.stages}},
      gemv_kernel<Format, kTiles, kBulk>, s);
}

// Calls use with the kernel's format, tiles of x's rows, and kind of loads.
template <typename Use>
void with_kernel(CudaLayout layout, int m, bool bulk, Use use) {
  const auto with_format = [&](auto format, auto bulk_loads) {
    if (m <= 8) {
      use(format, std::integral_constant<int, 1>(), bulk_loads);
    } else {
      use(format, std::integral_constant<int, 2>(), bulk_loads);
    }
  };
  const auto with_loads = [&](auto bulk_loads) {
    switch (layout) {
      case CudaLayout::kBF16:
        return with_format(Bf16Format<bulk_loads>(), bulk_loads);
      case CudaLayout::kCode4:
        return with_format(CodeFormat<CudaLayout::kCode4>(), bulk_loads);
      case CudaLayout::kCode8:
        return with_format(CodeFormat<CudaLayout::kCode8>(), bulk_loads);
      case CudaLayout::kCode8Min:
        return with_format(CodeFormat<CudaLayout::kCode8Min>(), bulk_loads);
      case CudaLayout::kCode8Fine:
        return with_format(CodeFormat<CudaLayout::kCode8Fine>(), bulk_loads);
      default:
        return;
    }
  };
  if (bulk) {
    with_loads(std::true_type());
  } else {
    with_loads(std::false_type());
  }
}

}  // namespace

bool prepare_gemv(const device::DeviceInfo& info) {
  for (int layout = 0; layout < static_cast<int>(CudaLayout::kCount); ++layout)
    for (int m : {8, 16})
      with_kernel(static_cast<CudaLayout>(layout), m, info.sm >= 90,
                  [&](auto format, auto tiles, auto bulk) {
                    const int most = bulk ? 227 * 1024 : 96 * 1024;
                    cudaFuncSetAttribute(gemv_kernel<decltype(format), tiles, bulk>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, most);
                  });
  return info.sm < 90 || tensor_map_encoder() != nullptr;
}

void gemv(const GemvParams& p, CudaLayout layout, const device::DeviceInfo& info,
          device::Stream& stream, const GemvTuning& tuning) {
  with_kernel(layout, p.m, info.sm >= 90, [&](auto format, auto tiles, auto bulk) {
    launch<decltype(format), tiles, bulk>(p, info, stream, tuning);
  });
}

}  // namespace attune::ops::gemm
