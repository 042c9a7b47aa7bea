// A CTA on every multiprocessor takes an equal share of the weight's tiles of 16 rows. Its warps
// cut a tile along k into units that each requests for itself, some ahead of what it multiplies;
// the first are requested before the wait for the kernel before, so that the memory works on across
// the boundary of two products. The tensor cores take 16 rows of weights as one operand and the
// rows of x as the other: that leaves the other units idle, whatever the number of rows up to 16.
// The warps' sums are added in their order, so that the result is the same in every run.
#include <cuda.h>

#include <algorithm>
#include <type_traits>

#include "device/cuda/launch.cuh"
#include "device/cuda/tensor_map.h"
#include "ops/gemm/cuda/bulk_copy.cuh"
#include "ops/gemm/cuda/codes.h"
#include "ops/gemm/cuda/gemv.h"
#include "ops/gemm/cuda/mma.cuh"
#include "ops/gemm/cuda/tensor_map.h"
#include "ops/gemm/cuda/x_rows.cuh"

namespace attune::ops::gemm {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
// Tiles whose sums are kept while x passes in parts.
constexpr int kSaved = 4;
constexpr int kMaxStages = 4;       // of a warp
constexpr int kBarrierBytes = 384;  // kMaxStages for each warp, and two for x

struct Shape {
  GemvParams p;
  int32_t stages;
  int32_t x_part;    // k of x in shared memory at a time: all, or a multiple of all warps' units
  int32_t x_stride;  // bytes
  CUtensorMap map;   // of bfloat16 weights, [n, k]
};

// ---- formats: what a unit is, and its product ----

// The products' narrow operand: rows of x as they are. Columns past m repeat the last row; nobody
// looks at their sums.
template <int kTiles>
struct Columns {
  uint32_t row[kTiles];  // the address of what this lane tells load_matrices
  // k .. k + 32: b0, b1 of two products.
  __device__ __forceinline__ void load(int tile, int k, uint32_t (&b)[4]) const {
    load_matrices(b, row[tile] + k * 2);
  }
};

// Boxes of 16 rows by 64 k, in which the 16-byte pieces of a row are exchanged by its number, so
// that a column of pieces lies in all banks.
template <bool kBulk, int kTiles>
struct Bf16Format {
  static constexpr int kBoxBytes = kTileRows * kBlockK * 2;
  static constexpr int kUnitBlocks = 2;
  static constexpr int kUnitBytes = kUnitBlocks * kBoxBytes;

  static __device__ __forceinline__ void request(const Shape& s, int tile, int block, int blocks,
                                                 uint8_t* to, uint64_t* barrier, uint64_t policy) {
    barrier_expect(barrier, blocks * kBoxBytes);  // what lies past n and k counts, as zeros
    for (int i = 0; i < blocks; ++i)
      copy_box(to + i * kBoxBytes, &s.map, (block + i) * kBlockK, tile * kTileRows, barrier,
               policy);
  }

  // Blocks of 64 k from `block` on; unit: in shared memory, or nothing to read from p.w.
  // x_k: where they begin in the columns.
  static __device__ __forceinline__ void multiply(const GemvParams& p, int tile, int block,
                                                  int blocks, const uint8_t* unit, int x_k,
                                                  const Columns<kTiles>& x, int lane,
                                                  float (&sum)[kTiles][4]) {
    float odd[kTiles][4] = {};  // two chains of products, so that one need not wait for itself
    if constexpr (kBulk) {
      const int row = lane % 16, swap = row & 7;
      const uint32_t at = shared_address(unit) + row * 128;
#pragma unroll 2
      for (int j = 0; j < blocks * 2; ++j) {
        uint32_t a[2][4];
#pragma unroll
        for (int s = 0; s < 2; ++s)
          load_matrices(a[s],
                        at + j / 2 * kBoxBytes + ((j % 2 * 4 + s * 2 + lane / 16) ^ swap) * 16);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          uint32_t b[4];
          x.load(i, x_k + j * 32, b);
          mma(sum[i], a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
          mma(odd[i], a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
        }
      }
    } else {
      const int64_t row = tile * int64_t{kTileRows} + lane / 4, last = p.n - 1;
      const auto* upper = reinterpret_cast<const uint32_t*>(p.w + min(row, last) * p.k * 2);
      const auto* lower = reinterpret_cast<const uint32_t*>(p.w + min(row + 8, last) * p.k * 2);
      // Products of 32 k; of the last, only whole runs of 8 k may be there.
      const auto product = [&](int j, auto pair) {
        const int64_t at = (block * 2 + j) * 16 + lane % 4;  // pairs
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          uint32_t b[4];
          x.load(i, x_k + j * 32, b);
          mma(sum[i], pair(upper, at, 0), pair(lower, at, 0), pair(upper, at, 1),
              pair(lower, at, 1), b[0], b[1]);
          mma(odd[i], pair(upper, at, 2), pair(lower, at, 2), pair(upper, at, 3),
              pair(lower, at, 3), b[2], b[3]);
        }
      };
      const int whole = min(blocks * 2, p.k / 32 - block * 2);
#pragma unroll 4
      for (int j = 0; j < whole; ++j)
        product(j, [](const uint32_t* row, int64_t at, int run) { return row[at + run * 4]; });
      if (whole < blocks * 2 && p.k % 32 != 0)
        product(whole, [&](const uint32_t* row, int64_t at, int run) {
          return run * 8 < p.k % 32 ? row[at + run * 4] : 0u;
        });
    }
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) sum[i / 4][i % 4] += odd[i / 4][i % 4];
  }
};

template <CudaLayout kLayout, bool kBulk, int kTiles>
struct CodeFormat {
  static constexpr CodeBlock kBlock = code_block(kLayout);
  static constexpr int kUnitBlocks = kTiles == 1 ? 4 : 2;  // x wants the room of the ring
  static constexpr int kUnitBytes = kUnitBlocks * kBlock.bytes();

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
  static __device__ __forceinline__ void multiply(const GemvParams& p, int tile, int block,
                                                  int blocks, const uint8_t* unit, int x_k,
                                                  const Columns<kTiles>& x, int lane,
                                                  float (&sum)[kTiles][4]) {
    const uint8_t* from = unit;
    if constexpr (!kBulk) from = at(p, tile, block);
#pragma unroll 2
    for (int j = 0; j < blocks; ++j)
      multiply_block(from + j * kBlock.bytes(), x_k + j * kBlockK, x, lane, sum);
  }

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
      uint32_t b[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) x.load(i, x_k + half * 32, b[i]);
#pragma unroll
      for (int s0 = 0; s0 < 2; s0 += kSteps) {
        float part[kTiles][kBlock.planes][4] = {}, x_sum[kTiles][4] = {};
#pragma unroll
        for (int s = s0; s < s0 + kSteps; ++s) {
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            const uint32_t b0 = b[i][2 * s], b1 = b[i][2 * s + 1];
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

// A thread's element of a tile of y, what is there to add to, and where its sums lie.
struct Output {
  int64_t at = -1;  // in y; -1: none
  float before = 0;
  int from = 0;

  __device__ Output(const GemvParams& p, int tile) {
    const int row = threadIdx.x % kTileRows, column = threadIdx.x / kTileRows;
    const int64_t n = tile * int64_t{kTileRows} + row;
    if (column >= p.m || n >= p.n) return;
    at = column * p.ldy + n;
    if (p.bias) before = p.bias[n];
    if (p.accumulate) before += static_cast<const float*>(p.y)[at];
    from = (column / 8 * 32 + row % 8 * 4 + column % 8 / 2) * 4 + row / 8 * 2 + column % 2;
  }
};

// The units of one warp in their order: while a part of x is there it meets up to kSaved tiles, and
// of each every kWarps-th unit of that part. Which is the first turns from tile to tile, so that
// the warps get as many.
template <int kUnitBlocks>
struct Walk {
  int end, blocks, part_blocks, warp;  // tiles; blocks of k, of a part of x
  int group, tile, part, part_end, block;

  __device__ Walk(int first, int end, int blocks, int part_blocks, int warp)
      : end(end), blocks(blocks), part_blocks(part_blocks), warp(warp), group(first), tile(first) {
    start_part(0);
  }
  __device__ bool done() const { return tile >= end; }
  __device__ int count() const { return min(kUnitBlocks, part_end - block); }
  __device__ void next() {
    block += kWarps * kUnitBlocks;
    if (block >= part_end) next_tile();
  }
  static __device__ int first_block(int tile, int part, int part_end, int warp) {
    const int units = (part_end - part + kUnitBlocks - 1) / kUnitBlocks;
    return part + ((warp - tile * units) & (kWarps - 1)) * kUnitBlocks;
  }

 private:
  __device__ void start_part(int at) {
    part = at;
    part_end = min(part + part_blocks, blocks);
    block = first_block(tile, part, part_end, warp);
    if (block >= part_end) next_tile();
  }
  __device__ void next_tile() {
    do {
      if (++tile == min(group + kSaved, end)) {
        tile = group;
        part += part_blocks;
        if (part >= blocks) {
          part = 0;
          group += kSaved;
          tile = group;
        }
        part_end = min(part + part_blocks, blocks);
      }
      block = first_block(tile, part, part_end, warp);
    } while (!done() && block >= part_end);
  }
};

template <typename Format, int kTiles, bool kBulk>
__global__ void __launch_bounds__(kThreads, 1) gemv_kernel(const __grid_constant__ Shape s) {
#if __CUDA_ARCH__ < 900
  if (kBulk) return;  // never launched there
#endif
  constexpr int kUnit = Format::kUnitBlocks;
  extern __shared__ __align__(1024) uint8_t shared[];
  const GemvParams& p = s.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  device::pdl_trigger();

  const int ring_bytes = s.stages * Format::kUnitBytes;
  uint8_t* ring = shared + warp * ring_bytes;
  auto* barriers = reinterpret_cast<uint64_t*>(shared + kWarps * ring_bytes);
  uint64_t* there = barriers + warp * kMaxStages;
  uint64_t* x_there = barriers + kWarps * kMaxStages;
  uint8_t* x_shared = shared + kWarps * ring_bytes + kBarrierBytes;
  const int x_bytes = p.m * s.x_stride;  // of a part; of parts there are two at a time
  float* sums = reinterpret_cast<float*>(x_shared + (s.x_part < p.k ? 2 : 1) * x_bytes);
  float* saved = sums + 2 * kWarps * kTiles * 128;

  const int64_t tiles = tiles_of(p.n);
  const int first = static_cast<int>(tiles * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(tiles * (blockIdx.x + 1) / gridDim.x);
  const int blocks = static_cast<int>(blocks_of(p.k));
  const int part_blocks = static_cast<int>(blocks_of(s.x_part));
  Walk<kUnit> ahead(first, end, blocks, part_blocks, warp);
  const uint64_t policy = evict_first();
  const auto request = [&](int stage) {  // of one thread
    Format::request(s, ahead.tile, ahead.block, ahead.count(), ring + stage * Format::kUnitBytes,
                    there + stage, policy);
  };
  if (kBulk) {
    if (lane == 0) {
      for (int i = 0; i < s.stages; ++i) barrier_init(there + i);
      if (warp == 0) barrier_init(x_there), barrier_init(x_there + 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    for (int i = 0; i < s.stages && !ahead.done(); ++i, ahead.next())
      if (lane == 0) request(i);
  }
  device::pdl_wait();

  const auto request_x = [&](int part, int turn) {
    load_x<kBulk, kThreads, kBlockK>(p, part * kBlockK,
                                     min((part + part_blocks) * kBlockK, p.k) - part * kBlockK,
                                     x_shared + turn % 2 * x_bytes, s.x_stride, x_there + turn % 2);
  };
  __syncthreads();  // the barriers are there
  request_x(0, 0);
  const bool in_parts = part_blocks < blocks;
  int turn = 0, stage = 0, buffer = 0;
  uint32_t parity = 0;
  Columns<kTiles> x;
  for (int group = first; group < end; group += kSaved) {
    for (int part = 0; part < blocks; part += part_blocks) {
      const int part_end = min(part + part_blocks, blocks);
      if (group == first || in_parts) {
        __syncthreads();  // all threads' share of this part is there, and nobody needs the one
                          // before
        if (part_end < blocks) {
          request_x(part_end, turn + 1);
        } else if (in_parts && group + kSaved < end) {
          request_x(0, turn + 1);
        }
        if (kBulk) barrier_wait(x_there + turn % 2, turn / 2 % 2);
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
          x.row[i] = shared_address(x_shared) + turn % 2 * x_bytes +
                     min(lane % 8 + 8 * i, p.m - 1) * s.x_stride + lane / 8 * 16;
        ++turn;
      }
      for (int tile = group; tile < min(group + kSaved, end); ++tile) {
        const bool last = part_end == blocks;
        Output output(p, last ? tile : 1 << 30);
        float4* mine = reinterpret_cast<float4*>(saved) +
                       (((tile - group) * kWarps + warp) * kTiles * 32 + lane);
        float sum[kTiles][4];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const float4 v = part == 0 ? float4{} : mine[i * 32];
          sum[i][0] = v.x, sum[i][1] = v.y, sum[i][2] = v.z, sum[i][3] = v.w;
        }
        for (int block = Walk<kUnit>::first_block(tile, part, part_end, warp); block < part_end;
             block += kWarps * kUnit) {
          const uint8_t* unit = nullptr;
          if (kBulk) {
            unit = ring + stage * Format::kUnitBytes;
            barrier_wait(there + stage, parity);
          }
          Format::multiply(p, tile, block, min(kUnit, part_end - block), unit,
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
        float4* to =
            last ? reinterpret_cast<float4*>(sums) + ((buffer * kWarps + warp) * kTiles * 32 + lane)
                 : mine;
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
          to[i * 32] = float4{sum[i][0], sum[i][1], sum[i][2], sum[i][3]};
        if (!last) continue;
        __syncthreads();
        // The buffer is written again after the next tile's barrier, by when all have read it.
        if (output.at >= 0) {
          const float* from = sums + buffer * kWarps * kTiles * 128 + output.from;
          float v = output.before;
#pragma unroll
          for (int w = 0; w < kWarps; ++w) v += from[w * kTiles * 128];
          if (p.y_bf16) {
            static_cast<__nv_bfloat16*>(p.y)[output.at] = __float2bfloat16(v);
          } else {
            static_cast<float*>(p.y)[output.at] = v;
          }
        }
        buffer ^= 1;
      }
    }
  }
}

template <typename Format, int kTiles, bool kBulk>
void launch(const GemvParams& p, const device::DeviceInfo& info, device::Stream& stream,
            const GemvTuning& tuning) {
  constexpr int kAll = device::kMostSharedBytes;
  constexpr int kFewest = 2;
  constexpr int kStage = kBulk ? kWarps * Format::kUnitBytes : 0;
  const int limit = kBulk ? kAll : 96 * 1024;  // sm_89 has no more
  const auto stride = [](int64_t k) {          // so that the rows of a matrix lie in all banks
    return static_cast<int32_t>(blocks_of(k) * kBlockK * 2 + 16);
  };
  constexpr int kSums = 2 * kWarps * kTiles * 512, kKept = kSaved * kWarps * kTiles * 512;
  constexpr int kPart = 1024;  // a multiple of every unit
  Shape s{.p = p, .stages = 0, .x_part = p.k, .x_stride = stride(p.k)};
  int64_t fixed = kBarrierBytes + kSums + int64_t{p.m} * s.x_stride;
  if (fixed + kFewest * kStage > limit) {
    s.x_part = kPart;
    fixed = kBarrierBytes + kSums + kKept;
    while (fixed + 2 * int64_t{p.m} * stride(s.x_part + kPart) + kFewest * kStage <= limit)
      s.x_part += kPart;
    s.x_stride = stride(s.x_part);
    fixed += 2 * int64_t{p.m} * s.x_stride;
  }
  if constexpr (kBulk) {
    const int64_t room = tuning.shared_bytes > 0
                             ? std::max(fixed + kStage, int64_t{tuning.shared_bytes})
                             : int64_t{kAll};
    const int64_t most = tuning.stages > 0 ? std::min(tuning.stages, kMaxStages) : kMaxStages;
    s.stages = static_cast<int32_t>(std::min((room - fixed) / kStage, most));
    if constexpr (std::is_same_v<Format, Bf16Format<true, kTiles>>)
      s.map = tensor_map(p.w, p.n, p.k, p.k, kTileRows);
  }
  const int ctas = tuning.ctas_per_sm ? tuning.ctas_per_sm : kBulk ? 1 : 2;
  device::launch_kernel(
      stream, "gemv",
      {.grid = static_cast<uint32_t>(std::min<int64_t>(info.multiprocessors * ctas, tiles_of(p.n))),
       .block = kThreads,
       .shared_bytes = static_cast<uint32_t>(std::max<int64_t>(
           fixed + s.stages * kStage, kBulk && tuning.ctas_per_sm < 2 ? kLeastShared : 0))},
      {{"n", p.n}, {"k", p.k}, {"m", p.m}, {"stages", s.stages}},
      gemv_kernel<Format, kTiles, kBulk>, s);
}

// Calls use with the kernel's format, tiles of x's rows, and kind of loads.
template <typename Use>
void with_kernel(CudaLayout layout, int m, bool bulk, Use use) {
  const auto with_tiles = [&](auto tiles, auto loads) {
    switch (layout) {
      case CudaLayout::kBF16:
        return use(Bf16Format<loads, tiles>(), tiles, loads);
      case CudaLayout::kCode4:
        return use(CodeFormat<CudaLayout::kCode4, loads, tiles>(), tiles, loads);
      case CudaLayout::kCode8:
        return use(CodeFormat<CudaLayout::kCode8, loads, tiles>(), tiles, loads);
      case CudaLayout::kCode8Min:
        return use(CodeFormat<CudaLayout::kCode8Min, loads, tiles>(), tiles, loads);
      case CudaLayout::kCode8Fine:
        return use(CodeFormat<CudaLayout::kCode8Fine, loads, tiles>(), tiles, loads);
      default:
        return;
    }
  };
  const auto with_loads = [&](auto loads) {
    if (m <= 8) {
      with_tiles(std::integral_constant<int, 1>(), loads);
    } else {
      with_tiles(std::integral_constant<int, 2>(), loads);
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
  if (info.sm >= 90) prepare_codes();
  for (int layout = 0; layout < static_cast<int>(CudaLayout::kCount); ++layout)
    for (int m : {8, 16})
      with_kernel(static_cast<CudaLayout>(layout), m, info.sm >= 90,
                  [&](auto format, auto tiles, auto bulk) {
                    const int most = bulk ? device::kMostSharedBytes : 96 * 1024;
                    cudaFuncSetAttribute(gemv_kernel<decltype(format), tiles, bulk>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, most);
                  });
  return info.sm < 90 || device::has_tensor_maps();
}

void gemv(const GemvParams& p, CudaLayout layout, const device::DeviceInfo& info,
          device::Stream& stream, const GemvTuning& tuning) {
  if (info.sm >= 90 && multiply_codes(p, layout, info, stream)) return;
  with_kernel(layout, p.m, info.sm >= 90, [&](auto format, auto tiles, auto bulk) {
    launch<decltype(format), tiles, bulk>(p, info, stream, tuning);
  });
}

}  // namespace attune::ops::gemm
