// One CTA per multiprocessor takes an equal share of the rows and streams it through a ring in
// shared memory by bulk copies; what the ring holds is requested before the wait for the kernel
// before, so that the memory works on across the boundary of two products. The tensor cores take 16
// rows of weights as one operand and the rows of x as the other: that leaves the other units idle,
// whatever the number of rows up to 16. Eight warps share a stage along k; their sums are added in
// their order, so that the result is the same in every run.
#include <algorithm>

#include "device/cuda/launch.cuh"
#include "ops/gemm/cuda/gemv.h"
#include "ops/gemm/cuda/mma.cuh"

namespace attune::ops::gemm {
namespace {

constexpr int kWarps = 8;  // that multiply; one more requests
constexpr int kThreads = kWarps * 32;
constexpr int kSaved = 4;  // tiles whose sums are kept while x passes in parts
constexpr int kMaxStages = 12;
constexpr int kBarrierBytes = 256;

struct Shape {
  GemvParams p;
  int32_t stages;
  int32_t x_part;    // k of x in shared memory at a time: all, or a multiple of a stage's
  int32_t x_stride;  // bytes
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- the ring ----

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
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
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}

struct Ring {
  uint64_t *full, *empty;
  int stages, at = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++at < stages) return;
    at = 0;
    parity ^= 1;
  }
};

// ---- formats: where a stage comes from, and its product ----

// Column g (and g + 8) of the products' narrow operand: a row of x, or zeros.
template <int kTiles>
struct Columns {
  const uint8_t* row[kTiles];
  bool valid[kTiles];
  template <typename T>
  __device__ __forceinline__ T load(int tile, int byte) const {
    return valid[tile] ? *reinterpret_cast<const T*>(row[tile] + byte) : T{};
  }
};

struct Rows {
  int64_t first;
  int count;  // of a tile: 1 .. 16
};

struct Bf16Format {
  static constexpr int kStageK = 512, kGrain = 1, kPadK = 32;
  static constexpr int kXPad = 64;  // bytes: so that the warps' 16-byte loads meet no bank twice
  static constexpr int kRowBytes = kStageK * 2 + kXPad;
  static constexpr int kStageBytes = kTileRows * kRowBytes;

  static __device__ void request(const GemvParams& p, Rows rows, int k0, int k, uint8_t* stage,
                                 uint64_t* barrier, uint64_t policy, int lane) {
    if (lane == 0) barrier_expect(barrier, rows.count * k * 2);
    __syncwarp();
    if (lane < rows.count)
      bulk_copy(stage + lane * kRowBytes, p.w + ((rows.first + lane) * p.k + k0) * 2, k * 2,
                barrier, policy);
  }

  // stage: in shared memory, or null to read from p.w. k0: of the weight; x_byte: of the columns.
  template <int kTiles>
  static __device__ __forceinline__ void multiply(const GemvParams& p, Rows rows, int k0, int k,
                                                  const uint8_t* stage, int x_byte,
                                                  const Columns<kTiles>& x, int warp, int lane,
                                                  float (&sum)[kTiles][4]) {
    const int g = lane / 4, t = lane % 4;
    const int r0 = min(g, rows.count - 1), r1 = min(g + 8, rows.count - 1);
    const uint8_t *a0, *a1;
    if (stage) {
      a0 = stage + r0 * kRowBytes;
      a1 = stage + r1 * kRowBytes;
    } else {
      a0 = p.w + ((rows.first + r0) * p.k + k0) * 2;
      a1 = p.w + ((rows.first + r1) * p.k + k0) * 2;
    }
#pragma unroll 2
    for (int j = warp; j < k / 32; j += kWarps) {
      const int byte = j * 64 + t * 16;
      const uint4 u = *reinterpret_cast<const uint4*>(a0 + byte);
      const uint4 v = *reinterpret_cast<const uint4*>(a1 + byte);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 b = x.template load<uint4>(tile, x_byte + byte);
        mma(sum[tile], u.x, v.x, u.y, v.y, b.x, b.y);
        mma(sum[tile], u.z, v.z, u.w, v.w, b.z, b.w);
      }
    }
  }
};

template <CudaLayout kLayout>
struct CodeFormat {
  static constexpr CodeBlock kBlock = code_block(kLayout);
  static constexpr int kStageK = 1024, kGrain = kTileRows, kPadK = kBlockK;
  static constexpr int kXPad = 32;
  static constexpr int kStageBytes = kStageK / kBlockK * kBlock.bytes();

  static __device__ __forceinline__ const uint8_t* at(const GemvParams& p, Rows rows, int k0) {
    return p.w + (rows.first / kTileRows * blocks_of(p.k) + k0 / kBlockK) * int64_t{kBlock.bytes()};
  }

  static __device__ void request(const GemvParams& p, Rows rows, int k0, int k, uint8_t* stage,
                                 uint64_t* barrier, uint64_t policy, int lane) {
    if (lane != 0) return;
    const uint32_t bytes = static_cast<uint32_t>(blocks_of(k)) * kBlock.bytes();
    barrier_expect(barrier, bytes);
    bulk_copy(stage, at(p, rows, k0), bytes, barrier, policy);
  }

  // d and m of a row's k 16 s .., in units of the sums below.
  static __device__ __forceinline__ float2 scale(const uint8_t* scales, int row, int s) {
    if constexpr (kBlock.min)
      return halves(*reinterpret_cast<const uint32_t*>(scales + row * 8 + s / 2 * 4));
    if constexpr (kBlock.group == 16)
      return {__half2float(*reinterpret_cast<const __half*>(scales + row * 8 + s * 2)), 0.0f};
    return {__half2float(*reinterpret_cast<const __half*>(scales + row * 4 + s / 2 * 2)), 0.0f};
  }

  // Sums of codes and of x over a group come from the tensor cores; the scales are applied to them.
  template <int kTiles>
  static __device__ __forceinline__ void multiply(const GemvParams& p, Rows rows, int k0, int k,
                                                  const uint8_t* stage, int x_byte,
                                                  const Columns<kTiles>& x, int warp, int lane,
                                                  float (&sum)[kTiles][4]) {
    constexpr int kSteps = kBlock.group / 16;
    const int g = lane / 4, t = lane % 4;
    const uint8_t* from = stage ? stage : at(p, rows, k0);
    for (int j = warp; j < blocks_of(k); j += kWarps) {
      const uint8_t* block = from + j * kBlock.bytes();
      uint4 codes[kBlock.planes];
#pragma unroll
      for (int i = 0; i < kBlock.planes; ++i)
        codes[i] = *reinterpret_cast<const uint4*>(block + i * kPlaneBytes + lane * 16);
      const uint8_t* scales = block + kBlock.planes * kPlaneBytes;
#pragma unroll
      for (int s0 = 0; s0 < kBlockK / 16; s0 += kSteps) {
        float part[kTiles][kBlock.planes][4] = {}, x_sum[kTiles][4] = {};
#pragma unroll
        for (int s = s0; s < s0 + kSteps; ++s) {
          uint2 b[kTiles];
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            b[tile] = x.template load<uint2>(tile, x_byte + j * kBlockK * 2 + s * 32 + t * 8);
            mma(x_sum[tile], kOnes, kOnes, kOnes, kOnes, b[tile].x, b[tile].y);
          }
#pragma unroll
          for (int i = 0; i < kBlock.planes; ++i) {
            const uint32_t word = s == 0   ? codes[i].x
                                  : s == 1 ? codes[i].y
                                  : s == 2 ? codes[i].z
                                           : codes[i].w;
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
              mma(part[tile][i], nibbles(word, 0), nibbles(word, 1), nibbles(word, 2),
                  nibbles(word, 3), b[tile].x, b[tile].y);
          }
        }
        const float2 upper = scale(scales, g, s0), lower = scale(scales, g + 8, s0);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 dm = i < 2 ? upper : lower;
            // Codes came as 128 + nibble, those of 8 bits as 16 times that and that, and 128 more.
            float codes_sum = part[tile][0][i];
            constexpr float kOffset = kBlock.planes == 1 ? kNibbleBias : 17 * kNibbleBias + 128;
            if constexpr (kBlock.planes == 2) codes_sum = fmaf(codes_sum, 16.0f, part[tile][1][i]);
            codes_sum = fmaf(-kOffset, x_sum[tile][i], codes_sum);
            sum[tile][i] = fmaf(dm.x, codes_sum, sum[tile][i]);
            if constexpr (kBlock.min) sum[tile][i] = fmaf(dm.y, x_sum[tile][i], sum[tile][i]);
          }
        }
      }
    }
  }
};

// ---- the kernel ----

__device__ __forceinline__ void sync_multipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// k0 .. k0 + k of x into shared memory, zeros up to the format's unit of k.
template <typename Format>
__device__ void load_x(const GemvParams& p, int k0, int k, uint8_t* to, int stride) {
  const int vectors = (k + Format::kPadK - 1) / Format::kPadK * Format::kPadK / 8;
  const auto* x = static_cast<const uint16_t*>(p.x);
  const bool aligned = (reinterpret_cast<uint64_t>(x) | (p.ldx * 2)) % 16 == 0;
  for (int row = 0; row < p.m; ++row) {
    const uint16_t* from = x + row * p.ldx + k0;
    for (int i = threadIdx.x; i < vectors; i += kThreads) {
      union {
        uint4 v;
        uint16_t e[8];
      } u{};
      if (i * 8 < k) {
        if (aligned) {
          u.v = *reinterpret_cast<const uint4*>(from + i * 8);
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j) u.e[j] = from[i * 8 + j];
        }
      }
      *reinterpret_cast<uint4*>(to + row * stride + i * 16) = u.v;
    }
  }
}

// Adds the warps' sums of a tile and writes its part of y.
template <int kTiles>
__device__ void finish(const GemvParams& p, Rows rows, const float* sums) {
  for (int i = threadIdx.x; i < kTileRows * p.m; i += kThreads) {
    const int row = i % kTileRows, column = i / kTileRows;
    if (row >= rows.count) continue;
    const int lane = row % 8 * 4 + column % 8 / 2, part = row / 8 * 2 + column % 2;
    const float* from = sums + (column / 8 * 32 + lane) * 4 + part;
    float v = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v += from[w * kTiles * 128];
    const int64_t n = rows.first + row;
    if (p.bias) v += p.bias[n];
    if (p.y_bf16) {
      static_cast<__nv_bfloat16*>(p.y)[column * p.ldy + n] = __float2bfloat16(v);
    } else {
      float* y = static_cast<float*>(p.y) + column * p.ldy + n;
      *y = p.accumulate ? *y + v : v;
    }
  }
}

// Calls use(tile, part of x, first k, k) for every stage, in the order of the ring: while a part of
// x is there it meets up to kSaved tiles.
template <typename Format, typename Use>
__device__ __forceinline__ void for_stages(const Shape& s, int tiles, Use use) {
  for (int t0 = 0; t0 < tiles; t0 += kSaved)
    for (int x0 = 0; x0 < s.p.k; x0 += s.x_part)
      for (int t = t0; t < min(t0 + kSaved, tiles); ++t)
        for (int k0 = x0; k0 < min(x0 + s.x_part, s.p.k); k0 += Format::kStageK)
          use(t, x0, k0, min(Format::kStageK, min(x0 + s.x_part, s.p.k) - k0));
}

template <typename Format, int kTiles, bool kBulk>
__global__ void __launch_bounds__(kThreads + 32, 2) gemv_kernel(const __grid_constant__ Shape s) {
#if __CUDA_ARCH__ < 900
  if (kBulk) return;  // never launched there
#endif
  extern __shared__ __align__(128) uint8_t shared[];
  const GemvParams& p = s.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  device::pdl_trigger();

  uint64_t* full = reinterpret_cast<uint64_t*>(shared);
  Ring ring{full, full + kMaxStages, s.stages};
  uint8_t* stages = shared + kBarrierBytes;
  uint8_t* x_shared = stages + s.stages * Format::kStageBytes;
  float* sums = reinterpret_cast<float*>(x_shared + p.m * s.x_stride);
  float* saved = sums + 2 * kWarps * kTiles * 128;
  if (kBulk && threadIdx.x == 0) {
    for (int i = 0; i < s.stages; ++i) {
      barrier_init(ring.full + i, 1);
      barrier_init(ring.empty + i, kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  const int64_t grains = (p.n + Format::kGrain - 1) / Format::kGrain;
  const int64_t first = grains * blockIdx.x / gridDim.x * Format::kGrain;
  const int64_t end = min(int64_t{p.n}, grains * (blockIdx.x + 1) / gridDim.x * Format::kGrain);
  const int tiles = static_cast<int>((end - first + kTileRows - 1) / kTileRows);
  const auto rows_of = [&](int tile) {
    const int64_t row = first + tile * int64_t{kTileRows};
    return Rows{row, static_cast<int>(min(int64_t{kTileRows}, end - row))};
  };

  if (kBulk && warp == kWarps) {
    const uint64_t policy = evict_first();
    ring.parity = 1;  // the stages begin empty
    for_stages<Format>(s, tiles, [&](int tile, int, int k0, int k) {
      if (lane == 0) barrier_wait(ring.empty + ring.at, ring.parity);
      __syncwarp();
      Format::request(p, rows_of(tile), k0, k, stages + ring.at * Format::kStageBytes,
                      ring.full + ring.at, policy, lane);
      ring.next();
    });
    device::pdl_wait();
    return;
  }

  device::pdl_wait();
  Columns<kTiles> x;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    x.valid[i] = lane / 4 + 8 * i < p.m;
    x.row[i] = x_shared + (lane / 4 + 8 * i) * s.x_stride;
  }
  float sum[kTiles][4];
  int x_there = -1, buffer = 0;
  for_stages<Format>(s, tiles, [&](int tile, int x0, int k0, int k) {
    const int x_end = min(x0 + s.x_part, p.k);
    if (x_there != x0) {
      sync_multipliers();  // nobody needs the part before
      load_x<Format>(p, x0, x_end - x0, x_shared, s.x_stride);
      sync_multipliers();
      x_there = x0;
    }
    float4* mine =
        reinterpret_cast<float4*>(saved) + ((tile % kSaved * kWarps + warp) * kTiles * 32 + lane);
    if (k0 == x0) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const float4 v = x0 == 0 ? float4{} : mine[i * 32];
        sum[i][0] = v.x, sum[i][1] = v.y, sum[i][2] = v.z, sum[i][3] = v.w;
      }
    }
    const uint8_t* stage = nullptr;
    if (kBulk) {
      barrier_wait(ring.full + ring.at, ring.parity);
      stage = stages + ring.at * Format::kStageBytes;
    }
    Format::template multiply<kTiles>(p, rows_of(tile), k0, k, stage, (k0 - x0) * 2, x, warp, lane,
                                      sum);
    if (kBulk) {
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.empty + ring.at);
      ring.next();
    }
    if (k0 + k < x_end) return;
    const bool last = x_end == p.k;
    float4* to =
        last ? reinterpret_cast<float4*>(sums) + ((buffer * kWarps + warp) * kTiles * 32 + lane)
             : mine;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      to[i * 32] = float4{sum[i][0], sum[i][1], sum[i][2], sum[i][3]};
    if (!last) return;
    sync_multipliers();
    // The buffer is written again after the next tile's barrier, by when all have read it.
    finish<kTiles>(p, rows_of(tile), sums + buffer * kWarps * kTiles * 128);
    buffer ^= 1;
  });
}

template <typename Format, int kTiles, bool kBulk>
void launch(const GemvParams& p, const device::DeviceInfo& info, device::Stream& stream,
            const GemvTuning& tuning) {
  // With half of what a multiprocessor has, the next product's ring fills beside this one's.
  constexpr int kHalf = 113 * 1024, kAll = 227 * 1024;
  constexpr int kFewest = 4;
  const auto stride = [](int64_t k) {
    return static_cast<int32_t>((k * 2 + 127) / 128 * 128 + Format::kXPad);
  };
  constexpr int kSums = 2 * kWarps * kTiles * 512, kKept = kSaved * kWarps * kTiles * 512;
  const int stage = kBulk ? Format::kStageBytes : 0;
  const int limit = kBulk ? kAll : 96 * 1024;  // sm_89 has no more
  Shape s{p, 0, p.k, stride(p.k)};
  int64_t fixed = kBarrierBytes + kSums + int64_t{p.m} * s.x_stride;
  if (fixed + kFewest * stage > limit) {
    s.x_part = Format::kStageK;
    fixed = kBarrierBytes + kSums + kKept;
    while (fixed + int64_t{p.m} * stride(s.x_part + Format::kStageK) + kFewest * stage <= limit)
      s.x_part += Format::kStageK;
    s.x_stride = stride(s.x_part);
    fixed += int64_t{p.m} * s.x_stride;
  }
  if constexpr (kBulk) {
    int64_t room = fixed + kFewest * stage <= kHalf ? kHalf : kAll;
    if (tuning.shared_bytes > 0) room = std::max(fixed + stage, int64_t{tuning.shared_bytes});
    s.stages = static_cast<int32_t>(
        std::min<int64_t>((room - fixed) / stage, tuning.stages ? tuning.stages : kMaxStages));
  }
  constexpr int kGrain = Format::kGrain == 1 ? 8 : Format::kGrain;
  const int ctas = tuning.ctas_per_sm ? tuning.ctas_per_sm : kBulk ? 1 : 2;
  const auto grid = static_cast<uint32_t>(
      std::min<int64_t>(info.multiprocessors * ctas, (p.n + kGrain - 1) / kGrain));
  device::launch_kernel(stream, "gemv",
                        {.grid = grid,
                         .block = kBulk ? kThreads + 32 : kThreads,
                         .shared_bytes = static_cast<uint32_t>(fixed + s.stages * stage)},
                        {{"n", p.n}, {"k", p.k}, {"m", p.m}, {"stages", s.stages}},
                        gemv_kernel<Format, kTiles, kBulk>, s);
}

// Calls use with the kernel's format, tiles of x's rows, and kind of loads.
template <typename Use>
void with_kernel(CudaLayout layout, int m, bool bulk, Use use) {
  const auto with_format = [&](auto format) {
    const auto with_tiles = [&](auto tiles) {
      if (bulk) {
        use(format, tiles, std::true_type());
      } else {
        use(format, tiles, std::false_type());
      }
    };
    if (m <= 8) {
      with_tiles(std::integral_constant<int, 1>());
    } else {
      with_tiles(std::integral_constant<int, 2>());
    }
  };
  switch (layout) {
    case CudaLayout::kBF16:
      return with_format(Bf16Format());
    case CudaLayout::kCode4:
      return with_format(CodeFormat<CudaLayout::kCode4>());
    case CudaLayout::kCode8:
      return with_format(CodeFormat<CudaLayout::kCode8>());
    case CudaLayout::kCode8Min:
      return with_format(CodeFormat<CudaLayout::kCode8Min>());
    case CudaLayout::kCode8Fine:
      return with_format(CodeFormat<CudaLayout::kCode8Fine>());
    default:
      return;
  }
}

}  // namespace

void prepare_gemv(const device::DeviceInfo& info) {
  for (int layout = 0; layout < static_cast<int>(CudaLayout::kCount); ++layout)
    for (int m : {8, 16})
      with_kernel(static_cast<CudaLayout>(layout), m, info.sm >= 90,
                  [&](auto format, auto tiles, auto bulk) {
                    const int most = bulk ? 227 * 1024 : 96 * 1024;
                    cudaFuncSetAttribute(gemv_kernel<decltype(format), tiles, bulk>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, most);
                  });
}

void gemv(const GemvParams& p, CudaLayout layout, const device::DeviceInfo& info,
          device::Stream& stream, const GemvTuning& tuning) {
  with_kernel(layout, p.m, info.sm >= 90, [&](auto format, auto tiles, auto bulk) {
    launch<decltype(format), tiles, bulk>(p, info, stream, tuning);
  });
}

}  // namespace attune::ops::gemm
