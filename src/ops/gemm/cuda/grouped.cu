// A fixed grid walks the tiles of all problems, which each CTA counts by itself from their sizes:
// what only the device knows decides the work, and a graph can hold the launch. Tiles of a problem
// that share weights follow one another, so that those come from the L2 after the first. Loads run
// ahead of the products by a ring of asynchronous copies, also across tiles.
#include <algorithm>

#include "device/cuda/launch.cuh"
#include "ops/gemm/cuda/grouped.h"
#include "ops/gemm/cuda/mma.cuh"

namespace attune::ops::gemm {
namespace {

// kOutputs by kRows of y are a tile; warps cut it kAlong times along the outputs, kAcross across.
template <int kOutputs_, int kRows_, int kAlong_, int kAcross_, int kStages_, int kCtas_>
struct TileShape {
  static constexpr int kOutputs = kOutputs_, kRows = kRows_, kAlong = kAlong_, kAcross = kAcross_;
  static constexpr int kStages = kStages_;
  static constexpr int kCtas = kCtas_;  // on a multiprocessor
  static constexpr int kThreads = kAlong * kAcross * 32;
  static constexpr int kM = kOutputs / kAlong / 16, kN = kRows / kAcross / 8;  // products of a warp
  static_assert(kN % 2 == 0);
};
using FewRows = TileShape<64, 16, 4, 1, 6, 3>;
using ManyRows = TileShape<128, 128, 2, 4, 3, 2>;
using ManyRowsOfCodes = TileShape<128, 128, 2, 4, 5, 1>;  // more registers

constexpr int kRowBytes = kBlockK * 2;  // of a stage

// 16 bytes, or zeros.
__device__ __forceinline__ void copy16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
// 16-byte pieces of rows of 128 bytes, exchanged so that a column of pieces lies in all banks.
__device__ __forceinline__ int piece_at(int row, int piece) {
  return row * kRowBytes + (piece ^ (row & 7)) * 16;
}

// A thread's pieces of rows [first, first + kCount) of a bfloat16 matrix, 64 k after 64 k; zeros
// past rows and k. What does not change from step to step is worked out once.
template <int kCount, int kThreads>
class RowPieces {
 public:
  RowPieces() = default;
  __device__ RowPieces(const uint8_t* from, int64_t row_bytes, int first, int rows, int k)
      : at_(from + (first + row()) * row_bytes + piece() * 16),
        step_(kStep * row_bytes),
        rows_(rows - first - row()),
        k_(k - piece() * 8) {}
  __device__ __forceinline__ void copy(uint8_t* to) {
    to += piece_at(row(), piece());  // the same exchange for all of this thread's rows
#pragma unroll
    for (int i = 0; i < kCount / kStep; ++i)
      copy16(to + i * kStep * kRowBytes, at_ + i * step_, i * kStep < rows_ && k_ > 0);
    at_ += kRowBytes;
    k_ -= kBlockK;
  }

 private:
  static constexpr int kStep = kThreads / 8;  // rows that all threads copy at once
  static_assert(kStep % 8 == 0 && kCount % kStep == 0);
  static __device__ __forceinline__ int row() {
    return threadIdx.x / 8;
  }
  static __device__ __forceinline__ int piece() {
    return threadIdx.x % 8;
  }
  const uint8_t* at_;
  int64_t step_;
  int rows_, k_;
};

// ---- formats: the weights' part of a stage, and the operands from it ----

struct Bf16Operand {
  template <typename Tile>
  static constexpr int kStageBytes = Tile::kOutputs* kRowBytes;

  template <typename Tile>
  struct Pieces : RowPieces<Tile::kOutputs, Tile::kThreads> {
    Pieces() = default;
    __device__ Pieces(const Problem& p, int n0, int k)
        : RowPieces<Tile::kOutputs, Tile::kThreads>(p.w, int64_t{k} * 2, n0, p.n, k) {}
  };
  struct Held {};  // of 16 outputs over a stage
  static __device__ __forceinline__ void hold(const uint8_t*, int, int, Held&) {}
  // k 16 step .. of outputs 16 tile ..
  static __device__ __forceinline__ void weights(const uint8_t* stage, int tile, int step, int lane,
                                                 const Held&, uint32_t (&a)[4]) {
    const int row = tile * 16 + lane % 16;
    load_matrices(a, shared_address(stage + piece_at(row, 2 * step + lane / 16)));
  }
};

template <CudaLayout kLayout>
struct CodeOperand {
  static constexpr CodeBlock kBlock = code_block(kLayout);
  template <typename Tile>
  static constexpr int kStageBytes = Tile::kOutputs / kTileRows* kBlock.bytes();

  // A thread's pieces of the tile's blocks.
  template <typename Tile>
  class Pieces {
   public:
    Pieces() = default;
    __device__ Pieces(const Problem& p, int n0, int k) {
      const int64_t tile_bytes = blocks_of(k) * kBlock.bytes(), tiles = tiles_of(p.n);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int piece = threadIdx.x + i * Tile::kThreads;
        const int64_t tile = n0 / kTileRows + piece / kOfBlock;
        valid_[i] = piece < kAll && tile < tiles;
        at_[i] = p.w + (valid_[i] ? tile * tile_bytes + piece % kOfBlock * 16 : 0);
      }
    }
    __device__ __forceinline__ void copy(uint8_t* to) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int piece = threadIdx.x + i * Tile::kThreads;
        if (piece < kAll) copy16(to + piece * 16, at_[i], valid_[i]);
        at_[i] += kBlock.bytes();
      }
    }

   private:
    static constexpr int kOfBlock = kBlock.bytes() / 16;
    static constexpr int kAll = Tile::kOutputs / kTileRows * kOfBlock;
    static constexpr int kCount = (kAll + Tile::kThreads - 1) / Tile::kThreads;
    const uint8_t* at_[kCount];
    bool valid_[kCount];
  };
  struct Held {
    uint4 codes[kBlock.planes];
  };
  static __device__ __forceinline__ void hold(const uint8_t* stage, int tile, int lane,
                                              Held& held) {
#pragma unroll
    for (int i = 0; i < kBlock.planes; ++i)
      held.codes[i] = *reinterpret_cast<const uint4*>(stage + tile * kBlock.bytes() +
                                                      i * kPlaneBytes + lane * 16);
  }
  static __device__ __forceinline__ uint32_t word(const uint4& v, int step) {
    return step == 0 ? v.x : step == 1 ? v.y : step == 2 ? v.z : v.w;
  }
  static __device__ __forceinline__ float2 scale(const uint8_t* scales, int row, int step) {
    const int at = row * (kBlockK / kBlock.group) + step * 16 / kBlock.group;
    if constexpr (kBlock.min) return halves(*reinterpret_cast<const uint32_t*>(scales + at * 4));
    return {__half2float(*reinterpret_cast<const __half*>(scales + at * 2)), 0.0f};
  }
  static __device__ __forceinline__ void weights(const uint8_t* stage, int tile, int step, int lane,
                                                 const Held& held, uint32_t (&a)[4]) {
    const uint8_t* scales = stage + tile * kBlock.bytes() + kBlock.planes * kPlaneBytes;
    // The bfloat16 of a nibble is 128 more than that; codes of 8 bits have 128 of their own.
    constexpr float kOffset = kBlock.planes == 1 ? kNibbleBias : 17 * kNibbleBias + 128;
    float2 dm[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      dm[h] = scale(scales, lane / 4 + 8 * h, step);
      dm[h].y = fmaf(-kOffset, dm[h].x, dm[h].y);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t upper = nibbles(word(held.codes[0], step), i);
      float even = __uint_as_float(upper << 16), odd = __uint_as_float(upper & 0xffff0000u);
      if constexpr (kBlock.planes == 2) {
        const uint32_t lower = nibbles(word(held.codes[1], step), i);
        even = fmaf(even, 16.0f, __uint_as_float(lower << 16));
        odd = fmaf(odd, 16.0f, __uint_as_float(lower & 0xffff0000u));
      }
      const float2 s = dm[i % 2];
      const __nv_bfloat162 pair = __floats2bfloat162_rn(fmaf(s.x, even, s.y), fmaf(s.x, odd, s.y));
      a[i] = reinterpret_cast<const uint32_t&>(pair);
    }
  }
};

// Two tiles of 8 rows of x, k 16 step ..
__device__ __forceinline__ void load_rows(const uint8_t* stage, int tile, int step, int lane,
                                          uint32_t (&b)[4]) {
  const int row = tile * 8 + lane / 16 * 8 + lane % 8;
  load_matrices(b, shared_address(stage + piece_at(row, 2 * step + lane / 8 % 2)));
}

// ---- problems ----

__device__ __forceinline__ int rows_of(const ProblemList& list, int i) {
  return list.problems[i].m;
}
__device__ __forceinline__ int outputs_of(const ProblemList& list, int i) {
  return list.problems[i].n;
}
__device__ __forceinline__ Problem problem_of(const ProblemList& list, int i, bool /*y_bf16*/) {
  return list.problems[i];
}
__device__ __forceinline__ int rows_of(const Experts& e, int i) {
  return e.offsets[i + 1] - e.offsets[i];
}
__device__ __forceinline__ int outputs_of(const Experts& e, int /*i*/) {
  return e.n;
}
__device__ __forceinline__ Problem problem_of(const Experts& e, int i, bool y_bf16) {
  const int64_t first = e.offsets[i];
  return {e.w[i],
          e.x + first * e.ldx * 2,
          static_cast<uint8_t*>(e.y) + first * e.ldy * (y_bf16 ? 2 : 4),
          e.ldx,
          e.ldy,
          rows_of(e, i),
          e.n};
}

// ends[i]: tiles of problems 0 .. i. For one warp.
template <typename Tile, typename Problems>
__device__ void count_tiles(const Problems& problems, int* ends) {
  const int lane = threadIdx.x;
  int before = 0;
  for (int i0 = 0; i0 < problems.count; i0 += 32) {
    int tiles = 0;
    if (i0 + lane < problems.count)
      tiles = (rows_of(problems, i0 + lane) + Tile::kRows - 1) / Tile::kRows *
              ((outputs_of(problems, i0 + lane) + Tile::kOutputs - 1) / Tile::kOutputs);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, tiles, step);
      if (lane >= step) tiles += other;
    }
    if (i0 + lane < problems.count) ends[i0 + lane] = before + tiles;
    before += __shfl_sync(~0u, tiles, 31);
  }
}

// A tile of a problem.
struct Place {
  Problem p;
  int n0, m0;
};

template <typename Tile, typename Problems>
__device__ Place find(const Problems& problems, const int* ends, int tile, bool y_bf16) {
  int low = 0, high = problems.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ends[middle] > tile) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  Place place{problem_of(problems, low, y_bf16)};
  const int in = tile - (low > 0 ? ends[low - 1] : 0);
  const int across = (place.p.m + Tile::kRows - 1) / Tile::kRows;
  place.n0 = in / across * Tile::kOutputs;
  place.m0 = in % across * Tile::kRows;
  return place;
}

// Into y; the sums start anew.
template <typename Tile>
__device__ __forceinline__ void store(const Place& place, const GroupedParams& c, int warp,
                                      int lane, float (&sum)[Tile::kM][Tile::kN][4]) {
  const int n0 = place.n0 + warp / Tile::kAcross * Tile::kM * 16 + lane / 4;
  const int m0 = place.m0 + warp % Tile::kAcross * Tile::kN * 8 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < Tile::kM; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kN; ++j) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int n = n0 + i * 16 + part / 2 * 8, m = m0 + j * 8 + part % 2;
        const float v = sum[i][j][part];
        sum[i][j][part] = 0;
        if (n >= place.p.n || m >= place.p.m) continue;
        const int64_t at = m * place.p.ldy + n;
        if (c.y_bf16) {
          static_cast<__nv_bfloat16*>(place.p.y)[at] = __float2bfloat16(v);
        } else {
          float* y = static_cast<float*>(place.p.y) + at;
          *y = c.accumulate ? *y + v : v;
        }
      }
    }
  }
}

template <typename Operand, typename Tile>
constexpr int kStageBytes = Operand::template kStageBytes<Tile> + Tile::kRows* kRowBytes;

template <typename Operand, typename Tile, typename Problems>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtas)
    grouped_kernel(const __grid_constant__ Problems problems, const GroupedParams c) {
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ int ends[kMostProblems];
  constexpr int kStage = kStageBytes<Operand, Tile>;
  constexpr int kWeightBytes = Operand::template kStageBytes<Tile>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  device::pdl_trigger();
  device::pdl_wait();
  if (warp == 0) count_tiles<Tile>(problems, ends);
  __syncthreads();
  const int tiles = ends[problems.count - 1];
  const int steps = (c.k + kBlockK - 1) / kBlockK;
  const int mine = (tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) /
                   static_cast<int>(gridDim.x);
  const int total = max(mine, 0) * steps;

  typename Operand::template Pieces<Tile> weights;
  RowPieces<Tile::kRows, Tile::kThreads> rows;
  int load_tile = blockIdx.x, load_step = 0, load_stage = 0, loaded = 0;
  int compute_tile = blockIdx.x, compute_step = 0, compute_stage = 0;
  const auto request = [&] {
    if (loaded < total) {
      if (load_step == 0) {
        const Place place = find<Tile>(problems, ends, load_tile, c.y_bf16);
        weights = {place.p, place.n0, c.k};
        rows = {place.p.x, place.p.ldx * 2, place.m0, place.p.m, c.k};
        load_tile += gridDim.x;
      }
      uint8_t* stage = ring + load_stage * kStage;
      weights.copy(stage);
      rows.copy(stage + kWeightBytes);
      if (++load_step == steps) load_step = 0;
      if (++load_stage == Tile::kStages) load_stage = 0;
      ++loaded;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

#pragma unroll 1
  for (int i = 0; i < Tile::kStages - 1; ++i) request();
  float sum[Tile::kM][Tile::kN][4] = {};
  for (int i = 0; i < total; ++i) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Tile::kStages - 2) : "memory");
    __syncthreads();  // the stage is there, and nobody reads the one before it
    request();
    const uint8_t* stage = ring + compute_stage * kStage;
    if (++compute_stage == Tile::kStages) compute_stage = 0;
    const int tile0 = warp / Tile::kAcross * Tile::kM, row0 = warp % Tile::kAcross * Tile::kN;
    typename Operand::Held held[Tile::kM];
#pragma unroll
    for (int j = 0; j < Tile::kM; ++j) Operand::hold(stage, tile0 + j, lane, held[j]);
#pragma unroll
    for (int step = 0; step < kBlockK / 16; ++step) {
      uint32_t b[Tile::kN / 2][4];
#pragma unroll
      for (int j = 0; j < Tile::kN / 2; ++j)
        load_rows(stage + kWeightBytes, row0 + 2 * j, step, lane, b[j]);
#pragma unroll
      for (int j = 0; j < Tile::kM; ++j) {
        uint32_t a[4];
        Operand::weights(stage, tile0 + j, step, lane, held[j], a);
#pragma unroll
        for (int n = 0; n < Tile::kN; ++n)
          mma(sum[j][n], a[0], a[1], a[2], a[3], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
    if (++compute_step < steps) continue;
    compute_step = 0;
    store<Tile>(find<Tile>(problems, ends, compute_tile, c.y_bf16), c, warp, lane, sum);
    compute_tile += gridDim.x;
  }
}

template <typename Operand, typename Tile, typename Problems>
void launch(const Problems& problems, const GroupedParams& p, const device::DeviceInfo& info,
            device::Stream& stream) {
  device::launch_kernel(
      stream, "grouped",
      {.grid = static_cast<uint32_t>(info.multiprocessors * Tile::kCtas),
       .block = Tile::kThreads,
       .shared_bytes = static_cast<uint32_t>(Tile::kStages * kStageBytes<Operand, Tile>)},
      {{"problems", problems.count}, {"k", p.k}, {"typical_m", p.typical_m}},
      grouped_kernel<Operand, Tile, Problems>, problems, p);
}

// Calls use with the operand's and the tile's types.
template <typename Use>
void with_kernel(CudaLayout layout, bool many, Use use) {
  const auto with_operand = [&](auto operand) {
    if (!many) {
      use(operand, FewRows());
    } else if constexpr (std::is_same_v<decltype(operand), Bf16Operand>) {
      use(operand, ManyRows());
    } else {
      use(operand, ManyRowsOfCodes());
    }
  };
  switch (layout) {
    case CudaLayout::kBF16:
      return with_operand(Bf16Operand());
    case CudaLayout::kCode4:
      return with_operand(CodeOperand<CudaLayout::kCode4>());
    case CudaLayout::kCode8:
      return with_operand(CodeOperand<CudaLayout::kCode8>());
    case CudaLayout::kCode8Min:
      return with_operand(CodeOperand<CudaLayout::kCode8Min>());
    case CudaLayout::kCode8Fine:
      return with_operand(CodeOperand<CudaLayout::kCode8Fine>());
    default:
      return;
  }
}

template <typename Problems>
void choose(const Problems& problems, const GroupedParams& p, const device::DeviceInfo& info,
            device::Stream& stream) {
  if (problems.count == 0) return;
  with_kernel(p.layout, p.typical_m > 2 * FewRows::kRows, [&](auto operand, auto tile) {
    launch<decltype(operand), decltype(tile)>(problems, p, info, stream);
  });
}

}  // namespace

void prepare_grouped() {
  for (int layout = 0; layout < static_cast<int>(CudaLayout::kCount); ++layout)
    for (bool many : {false, true})
      with_kernel(static_cast<CudaLayout>(layout), many, [](auto operand, auto tile) {
        using Operand = decltype(operand);
        using Tile = decltype(tile);
        constexpr int kBytes = Tile::kStages * kStageBytes<Operand, Tile>;
        cudaFuncSetAttribute(grouped_kernel<Operand, Tile, ProblemList>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
        cudaFuncSetAttribute(grouped_kernel<Operand, Tile, Experts>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      });
}

void grouped(const ProblemList& list, const GroupedParams& p, const device::DeviceInfo& info,
             device::Stream& stream) {
  choose(list, p, info, stream);
}

void grouped(const Experts& experts, const GroupedParams& p, const device::DeviceInfo& info,
             device::Stream& stream) {
  choose(experts, p, info, stream);
}

}  // namespace attune::ops::gemm
