// A CTA on every multiprocessor takes an equal share of the weight's tiles, and each of its warps
// an equal run of that share, which lies in one piece in memory: a warp requests unit after unit of
// it for itself, some ahead of what it multiplies, the first ones before the wait for the kernel
// before. Nothing but the end needs the other warps: where a tile is shared by several, their sums
// are added in order, so that the result is the same in every run.
//
// What limits 4-bit codes is the number of instructions. The tensor cores multiply 16 rows of codes
// by eight columns; a column is not only a row of x but also a group of k, with zeros for all other
// groups, so that one chain of products leaves the sums of eight groups of one row (four of two
// rows, ...) apart, and a lane applies the scales of two groups instead of eight. The sums of x
// over the groups come from products with ones.
#include <algorithm>
#include <type_traits>

#include "device/cuda/launch.cuh"
#include "ops/gemm/cuda/bulk_copy.cuh"
#include "ops/gemm/cuda/codes.h"
#include "ops/gemm/cuda/x_rows.cuh"

namespace attune::ops::gemm {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * 32;
constexpr int kUnitBlocks = 4, kUnitK = kUnitBlocks * kBlockK;
constexpr int kMaxStages = 4;  // of a warp
constexpr int kBarrierBytes = (kWarps * kMaxStages + 2) * 8;

struct Shape {
  GemvParams p;
  int32_t stages, x_stride;  // bytes
  int32_t tiles, rest;       // of a CTA; those of the first `rest` CTAs are one more
  int32_t blocks, units;     // of a tile
};

__device__ __forceinline__ void store(const GemvParams& p, int64_t at, float v) {
  if (p.y_bf16) {
    static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16(v);
  } else {
    static_cast<float*>(p.y)[at] = v;
  }
}
__device__ __forceinline__ float before(const GemvParams& p, int64_t n, int64_t at) {
  float v = p.bias ? p.bias[n] : 0.0f;
  if (p.accumulate) v += static_cast<const float*>(p.y)[at];
  return v;
}

// Of two rows of 8x8 matrices instead of four, see load_matrices.
__device__ __forceinline__ void load_two_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address));
}

// kRows: of x, a power of two up to 8; columns 2t, 2t + 1 of a product's lane 4g + t, as all
// columns c, are row c % kRows of x and group c / kRows of the kGroups that pass at a time.
template <CudaLayout kLayout, int kRows>
struct Codes {
  static constexpr CodeBlock kBlock = code_block(kLayout);
  static constexpr int kUnitBytes = kUnitBlocks * kBlock.bytes();
  static constexpr int kGroup = kBlock.group, kBlockGroups = kBlockK / kGroup;
  static constexpr int kGroups = 8 / kRows;
  // What is unrolled: a pass of several blocks, or the passes of a block.
  static constexpr int kPartGroups = kGroups > kBlockGroups ? kGroups : kBlockGroups;
  static constexpr int kPartBlocks = kPartGroups / kBlockGroups;
  static constexpr int kSteps = kGroup / 16;  // products of a group
  static constexpr int kScaleBytes = kBlock.min ? 4 : 2;
  // Codes come as 128 + nibble, those of 8 bits as 16 times that and that, and 128 more.
  static constexpr float kOffset = kBlock.planes == 1 ? kNibbleBias : 17 * kNibbleBias + 128;

  uint32_t own[kGroups];          // 1 where this lane's column is of the group, else 0
  uint32_t x_row;                 // the address of what this lane tells load_matrices
  int lane, codes_at, scales_at;  // the latter in a block
  float sum[4];                   // rows g (0, 1), g + 8 (2, 3), columns 2t, 2t + 1

  __device__ Codes(uint32_t x, int stride, int m, int lane) : lane(lane) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) own[j] = keep(lane / 4 / kRows == j ? 1u : 0u);
    x_row = keep(x + min(lane % kRows, m - 1) * stride + lane % 8 / kRows * kGroup * 2 +
                 lane / 8 % (kGroup / 8) * 16);
    codes_at = keep(lane * 16);
    const int group = first_group();
    scales_at = keep(group / kBlockGroups * kBlock.bytes() + kBlock.planes * kPlaneBytes +
                     (lane / 4 * kBlockGroups + group % kBlockGroups) * kScaleBytes);
    clear();
  }
  __device__ void clear() {
#pragma unroll
    for (float& v : sum) v = 0;
  }

  // What the compiler shall hold in a register instead of working it out again in the loop.
  template <typename T>
  static __device__ __forceinline__ T keep(T v) {
    asm volatile("" : "+r"(v));
    return v;
  }
  // Of a pass, of this lane's column 2t.
  __device__ __forceinline__ int first_group() const {
    return lane % 4 * 2 / kRows;
  }

  // d and m of a row and a lane's two columns.
  static __device__ __forceinline__ void load_scales(const uint8_t* scales, float2 (&dm)[2]) {
    if constexpr (kBlock.min && kRows == 1) {
      const uint2 v = *reinterpret_cast<const uint2*>(scales);
      dm[0] = halves(v.x);
      dm[1] = halves(v.y);
    } else if constexpr (kBlock.min) {
      dm[0] = dm[1] = halves(*reinterpret_cast<const uint32_t*>(scales));
    } else if constexpr (kRows == 1) {
      const float2 d = halves(*reinterpret_cast<const uint32_t*>(scales));
      dm[0] = {d.x, 0.0f};
      dm[1] = {d.y, 0.0f};
    } else {
      dm[0] = dm[1] = {__half2float(*reinterpret_cast<const __half*>(scales)), 0.0f};
    }
#pragma unroll
    for (float2& v : dm) v.y = fmaf(-kOffset, v.x, v.y);
  }

  // The unit's first `blocks` blocks, all if kFull. x_k: where it begins in x, which has zeros
  // behind its end.
  template <bool kFull>
  __device__ __forceinline__ void multiply(const uint8_t* unit, int blocks, int x_k) {
#pragma unroll 2
    for (int block = 0; block < (kFull ? kUnitBlocks : blocks); block += kPartBlocks)
      multiply_part<kFull>(unit + block * kBlock.bytes(), blocks - block,
                           x_row + (x_k + block * kBlockK) * 2);
  }

  template <bool kFull>
  __device__ __forceinline__ void multiply_part(const uint8_t* part, int blocks, uint32_t x) {
    uint32_t words[kBlock.planes][4];
#pragma unroll
    for (int first = 0; first < kPartGroups; first += kGroups) {
      uint32_t b[4];
      if constexpr (kSteps == 2) {
        load_matrices(b, x + first * kGroup * 2);
      } else {
        load_two_matrices(b, x + first * kGroup * 2);
      }
      float x_sum[4] = {}, codes[2][kBlock.planes][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        mma(x_sum, kOnes, kOnes, kOnes, kOnes, b[2 * s], b[2 * s + 1]);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const int group = first + j, block = group / kBlockGroups;
        if (!kFull && block >= blocks) break;
        if (group % kBlockGroups == 0) {
#pragma unroll
          for (int i = 0; i < kBlock.planes; ++i) {
            const uint4 v = *reinterpret_cast<const uint4*>(
                part + codes_at + block * kBlock.bytes() + i * kPlaneBytes);
            words[i][0] = v.x, words[i][1] = v.y, words[i][2] = v.z, words[i][3] = v.w;
          }
        }
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          // Multiplied, since the units for logic have the codes to do.
          const uint32_t b0 = kGroups == 1 ? b[2 * s] : b[2 * s] * own[j],
                         b1 = kGroups == 1 ? b[2 * s + 1] : b[2 * s + 1] * own[j];
#pragma unroll
          for (int i = 0; i < kBlock.planes; ++i) {
            const uint32_t word = words[i][group % kBlockGroups * kSteps + s];
            // Two chains, so that a product need not wait for the one before.
            mma(codes[(j * kSteps + s) % 2][i], nibbles(word, 0), nibbles(word, 1),
                nibbles(word, 2), nibbles(word, 3), b0, b1);
          }
        }
      }
      if (!kFull && (first + first_group()) / kBlockGroups >= blocks) continue;  // no scales there
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float2 dm[2];
        load_scales(part + scales_at + (first + 8 * h * kBlockGroups) * kScaleBytes, dm);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int e = 2 * h + c;
          float v = codes[0][0][e] + codes[1][0][e];
          if constexpr (kBlock.planes == 2) v = fmaf(v, 16.0f, codes[0][1][e] + codes[1][1][e]);
          sum[e] = fmaf(dm[c].x, v, sum[e]);
          sum[e] = fmaf(dm[c].y, x_sum[c], sum[e]);
        }
      }
    }
  }

  // fn(row of the tile, row of x, sum) of all k so far, by some lanes; clears the sums.
  template <typename Fn>
  __device__ __forceinline__ void take(Fn&& fn) {
    if constexpr (kRows == 1) {
      sum[0] += sum[1];
      sum[2] += sum[3];
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      if (2 * offset < kRows) continue;
#pragma unroll
      for (int e = 0; e < 4; e += kRows == 1 ? 2 : 1)
        sum[e] += __shfl_xor_sync(~0u, sum[e], offset);
    }
    if (lane % 4 * 2 < kRows) {
#pragma unroll
      for (int e = 0; e < 4; e += kRows == 1 ? 2 : 1)
        fn(lane / 4 + e / 2 * 8, lane % 4 * 2 + e % 2, sum[e]);
    }
    clear();
  }
};

// The i-th of a CTA's results.
struct Output {
  int tile, at;  // of the CTA's; in the tile, [m][kTileRows]
  int64_t n;

  __device__ Output(const GemvParams& p, int first_tile, int i) {
    tile = i / kTileRows / p.m;
    at = i - tile * kTileRows * p.m;
    n = (first_tile + tile) * int64_t{kTileRows} + at % kTileRows;
  }
  __device__ int64_t to(const GemvParams& p) const { return at / kTileRows * p.ldy + n; }
  __device__ void load(const GemvParams& p, float* bias, float* y) const {
    if (n >= p.n) return;
    if (p.bias) *bias = p.bias[n];
    if (p.accumulate) *y = static_cast<const float*>(p.y)[to(p)];
  }
};

template <CudaLayout kLayout, int kRows>
__global__ void __launch_bounds__(kThreads, 1) codes_kernel(const __grid_constant__ Shape s) {
#if __CUDA_ARCH__ < 900
  return;  // never launched there
#endif
  using Format = Codes<kLayout, kRows>;
  constexpr int kBytes = Format::kBlock.bytes(), kSegment = kTileRows * kRows;
  extern __shared__ __align__(128) uint8_t shared[];
  const GemvParams& p = s.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  device::pdl_trigger();

  const int ring_bytes = s.stages * Format::kUnitBytes;
  uint8_t* ring = shared + warp * ring_bytes;
  auto* barriers = reinterpret_cast<uint64_t*>(shared + kWarps * ring_bytes);
  uint64_t *there = barriers + warp * kMaxStages, *x_there = barriers + kWarps * kMaxStages;
  // A warp's sums of its first and its last tile, [2][kRows][kTileRows].
  float* segments = reinterpret_cast<float*>(shared + kWarps * ring_bytes + kBarrierBytes);
  uint8_t* x_shared = reinterpret_cast<uint8_t*>(segments + kWarps * 2 * kSegment);

  const int cta = static_cast<int>(blockIdx.x), tiles = s.tiles + (cta < s.rest ? 1 : 0);
  const int first_tile = cta * s.tiles + min(cta, s.rest);
  const int blocks = s.blocks, tile_units = s.units, units = tiles * tile_units;
  const auto begin_of = [&](int w) { return static_cast<int>(int64_t{units} * w / kWarps); };
  const int begin = begin_of(warp), end = begin_of(warp + 1);
  int tile = begin / tile_units, block = (begin - tile * tile_units) * kUnitBlocks;

  const uint8_t* ahead = p.w + ((first_tile + tile) * int64_t{blocks} + block) * kBytes;
  int ahead_block = block, ahead_units = end - begin;
  const uint64_t policy = evict_first();
  const auto request = [&](int stage) {
    const int bytes = min(kUnitBlocks, blocks - ahead_block) * kBytes;
    if (lane == 0) {
      barrier_expect(there + stage, bytes);
      copy_bytes(ring + stage * Format::kUnitBytes, ahead, bytes, there + stage, policy);
    }
    ahead += bytes;
    ahead_block = ahead_block + kUnitBlocks < blocks ? ahead_block + kUnitBlocks : 0;
    --ahead_units;
  };
  if (lane == 0) {
    for (int i = 0; i < s.stages; ++i) barrier_init(there + i);
    if (warp == 0) barrier_init(x_there);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
  for (int i = 0; i < s.stages && ahead_units > 0; ++i) request(i);
  device::pdl_wait();

  __syncthreads();  // the barriers are there
  load_x<true, kThreads, kUnitK>(p, 0, p.k, x_shared, s.x_stride, x_there);
  // What the first of this thread's results is added to, while there is time.
  const int outputs = tiles * kTileRows * p.m;
  const auto output = [&](int i) { return Output(p, first_tile, i); };
  float bias = 0, y = 0;
  if (static_cast<int>(threadIdx.x) < outputs) output(threadIdx.x).load(p, &bias, &y);
  __syncthreads();
  barrier_wait(x_there, 0);

  Format format(shared_address(x_shared), s.x_stride, p.m, lane);
  int stage = 0, from = begin;  // from: of the tile's units, or of the warp's
  uint32_t parity = 0;
  const auto finish_tile = [&](int to) {
    if (to - from == tile_units) {  // nobody else has any of it
      format.take([&](int row, int column, float v) {
        const int64_t n = (first_tile + tile) * int64_t{kTileRows} + row;
        const int64_t at = column * p.ldy + n;
        if (n < p.n && column < p.m) store(p, at, v + before(p, n, at));
      });
    } else {
      float* segment = segments + (warp * 2 + (from != begin)) * kSegment;
      format.take([&](int row, int column, float v) { segment[column * kTileRows + row] = v; });
    }
    from = to;
    ++tile;
    block = 0;
  };
  for (int unit = begin; unit < end; ++unit) {
    const uint8_t* data = ring + stage * Format::kUnitBytes;
    const int x_k = block * kBlockK;
    barrier_wait(there + stage, parity);
    if (block + kUnitBlocks <= blocks) {
      format.template multiply<true>(data, kUnitBlocks, x_k);
    } else {
      format.template multiply<false>(data, blocks - block, x_k);
    }
    __syncwarp();  // all have read it
    if (ahead_units > 0) request(stage);
    if (++stage == s.stages) {
      stage = 0;
      parity ^= 1;
    }
    block += kUnitBlocks;
    if (block >= blocks) finish_tile(unit + 1);
  }
  if (from < end) finish_tile(end);
  __syncthreads();

  const auto warp_of = [&](int unit) {
    return static_cast<int>(((unit + 1u) * kWarps - 1) / static_cast<uint32_t>(units));
  };
  for (int i = threadIdx.x; i < outputs; i += kThreads) {
    const Output out = output(i);
    const int first = out.tile * tile_units, w0 = warp_of(first),
              w1 = warp_of(first + tile_units - 1);
    if (w0 == w1 || out.n >= p.n) continue;
    if (i != static_cast<int>(threadIdx.x)) out.load(p, &bias, &y);
    float v = bias + y;
    for (int w = w0; w <= w1; ++w) {
      const int b = begin_of(w);
      if (b == begin_of(w + 1)) continue;  // it has no unit
      v += segments[(w * 2 + (b < first)) * kSegment + out.at];
    }
    store(p, out.to(p), v);
  }
}

template <CudaLayout kLayout, int kRows>
bool launch(const GemvParams& p, const device::DeviceInfo& info, device::Stream& stream) {
  constexpr int kStage = kWarps * Codes<kLayout, kRows>::kUnitBytes;
  constexpr int64_t kAll = device::kMostSharedBytes;
  const int32_t stride = (p.k + kUnitK - 1) / kUnitK * kUnitK * 2 + 16;
  const int64_t fixed = kBarrierBytes + kWarps * 2 * kTileRows * kRows * 4 + int64_t{p.m} * stride;
  if (fixed + 2 * kStage > kAll) return false;
  const auto stages = static_cast<int32_t>(std::min<int64_t>((kAll - fixed) / kStage, kMaxStages));
  const auto tiles = static_cast<int32_t>(tiles_of(p.n)),
             blocks = static_cast<int32_t>(blocks_of(p.k));
  const int32_t ctas = std::min(info.multiprocessors, tiles);
  device::launch_kernel(
      stream, "codes",
      {.grid = static_cast<uint32_t>(ctas),
       .block = kThreads,
       .shared_bytes =
           static_cast<uint32_t>(std::max<int64_t>(fixed + stages * kStage, kLeastShared))},
      {{"n", p.n}, {"k", p.k}, {"m", p.m}, {"stages", stages}}, codes_kernel<kLayout, kRows>,
      Shape{.p = p,
            .stages = stages,
            .x_stride = stride,
            .tiles = tiles / ctas,
            .rest = tiles % ctas,
            .blocks = blocks,
            .units = (blocks + kUnitBlocks - 1) / kUnitBlocks});
  return true;
}

// use(layout, rows of x) of the kernel; false if there is none.
template <typename Use>
bool with_kernel(CudaLayout layout, int m, Use use) {
  const auto with_rows = [&](auto of) {
    if (m == 1) return use(of, std::integral_constant<int, 1>());
    if (m == 2) return use(of, std::integral_constant<int, 2>());
    if (m <= 4) return use(of, std::integral_constant<int, 4>());
    if (m <= 8) return use(of, std::integral_constant<int, 8>());
    return false;
  };
  switch (layout) {
    case CudaLayout::kCode4:
      return with_rows(std::integral_constant<CudaLayout, CudaLayout::kCode4>());
    case CudaLayout::kCode8:
      return with_rows(std::integral_constant<CudaLayout, CudaLayout::kCode8>());
    case CudaLayout::kCode8Min:
      return with_rows(std::integral_constant<CudaLayout, CudaLayout::kCode8Min>());
    case CudaLayout::kCode8Fine:
      return with_rows(std::integral_constant<CudaLayout, CudaLayout::kCode8Fine>());
    default:
      return false;
  }
}

}  // namespace

void prepare_codes() {
  for (int layout = 0; layout < static_cast<int>(CudaLayout::kCount); ++layout)
    for (int m : {1, 2, 4, 8})
      with_kernel(static_cast<CudaLayout>(layout), m, [](auto of, auto rows) {
        return cudaFuncSetAttribute(codes_kernel<of, rows>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    device::kMostSharedBytes) == cudaSuccess;
      });
}

bool multiply_codes(const GemvParams& p, CudaLayout layout, const device::DeviceInfo& info,
                    device::Stream& stream) {
  return with_kernel(layout, p.m,
                     [&](auto of, auto rows) { return launch<of, rows>(p, info, stream); });
}

}  // namespace attune::ops::gemm
