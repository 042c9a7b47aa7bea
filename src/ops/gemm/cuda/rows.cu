#include "device/cuda/launch.cuh"
#include "ops/gemm/cuda/mma.cuh"
#include "ops/gemm/cuda/rows.h"
#include "ops/gemm/gemm.h"

namespace attune::ops::gemm {
namespace {

constexpr int kThreads = 256;

uint32_t blocks_for(int64_t items, int64_t each) {
  return static_cast<uint32_t>((items + each - 1) / each);
}

// ---- codes to bfloat16: one warp a block of 16 rows and 64 k ----

__device__ __forceinline__ float half_at(const uint8_t* p) {
  return __half2float(*reinterpret_cast<const __half*>(p));
}

template <CudaLayout kLayout>
__global__ void dequantize_kernel(DequantizeParams p) {
  constexpr CodeBlock kBlock = code_block(kLayout);
  constexpr int kScaleBytes = kBlock.min ? 4 : 2;
  device::pdl_trigger();
  device::pdl_wait();  // the products before may still read what is written here
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t per_tile = blocks_of(p.k);
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (index >= tiles_of(p.rows) * per_tile) return;
  const int64_t row0 = index / per_tile * kTileRows, k0 = index % per_tile * kBlockK;
  const uint8_t* block = p.w + (p.first_row / kTileRows * per_tile + index) * kBlock.bytes();
  const uint8_t* scales = block + kBlock.planes * kPlaneBytes;
  uint32_t words[kBlock.planes][4];
#pragma unroll
  for (int i = 0; i < kBlock.planes; ++i) {
    const uint4 v = *reinterpret_cast<const uint4*>(block + i * kPlaneBytes + lane * 16);
    words[i][0] = v.x, words[i][1] = v.y, words[i][2] = v.z, words[i][3] = v.w;
  }
  auto* out = static_cast<__nv_bfloat16*>(p.out);
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const int64_t k = k0 + s * 16 + t * 2;
    if (k >= p.k) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = g + 8 * h;
      if (row0 + row >= p.rows) continue;
      const int at = row * (kBlockK / kBlock.group) + s * 16 / kBlock.group;
      const float d = half_at(scales + at * kScaleBytes);
      const float m = kBlock.min ? half_at(scales + at * kScaleBytes + 2) : 0.0f;
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // i = 2p + e
        const int shift = 4 * (i / 2 * 2 + h + 4 * (i % 2));
        int code = (words[0][s] >> shift) & 15;
        if (kBlock.planes == 2)
          code = code * 16 + static_cast<int>((words[kBlock.planes - 1][s] >> shift) & 15) - 128;
        v[i] = fmaf(d, static_cast<float>(code), m);
      }
      __nv_bfloat16* to = out + (row0 + row) * p.k + k;
      *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(v[0], v[1]);
      *reinterpret_cast<__nv_bfloat162*>(to + 8) = __floats2bfloat162_rn(v[2], v[3]);
    }
  }
}

// ---- bias ----

struct BiasParams {
  void* y;
  int64_t ldy;
  int32_t m, n;
  const float* bias;
  bool y_bf16;
};

__global__ void bias_kernel(BiasParams p) {
  device::pdl_trigger();
  device::pdl_wait();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{p.m} * p.n) return;
  const int64_t at = i / p.n * p.ldy + i % p.n;
  const float bias = p.bias[i % p.n];
  if (p.y_bf16) {
    auto* y = static_cast<__nv_bfloat16*>(p.y) + at;
    *y = __float2bfloat16(__bfloat162float(*y) + bias);
  } else {
    static_cast<float*>(p.y)[at] += bias;
  }
}

// ---- float32: a CTA has 4 rows and 4 outputs, its threads share k ----

constexpr int kSide = 4;
constexpr int kF32Threads = 128;

struct F32Params {
  const float *x, *w, *bias;
  void* y;
  int64_t ldx, ldy;
  int32_t m, n, k;
  bool y_bf16, accumulate;
};

__global__ void __launch_bounds__(kF32Threads) linear_f32_kernel(F32Params p) {
  device::pdl_trigger();
  device::pdl_wait();
  const int64_t n0 = int64_t{blockIdx.x} * kSide, m0 = int64_t{blockIdx.y} * kSide;
  const float *x[kSide], *w[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) {  // what lies past the end is computed and dropped
    x[i] = p.x + min(m0 + i, int64_t{p.m} - 1) * p.ldx;
    w[i] = p.w + min(n0 + i, int64_t{p.n} - 1) * p.k;
  }
  float sum[kSide][kSide] = {};
#pragma unroll 4
  for (int k = threadIdx.x; k < p.k; k += kF32Threads) {
    float a[kSide], b[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      a[i] = x[i][k];
      b[i] = w[i][k];
    }
#pragma unroll
    for (int i = 0; i < kSide; ++i)
#pragma unroll
      for (int j = 0; j < kSide; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
  }
  __shared__ float sums[kF32Threads / 32][kSide * kSide];
#pragma unroll
  for (int i = 0; i < kSide * kSide; ++i) {
    float v = sum[i / kSide][i % kSide];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][i] = v;
  }
  __syncthreads();
  const int64_t row = m0 + threadIdx.x / kSide, column = n0 + threadIdx.x % kSide;
  if (threadIdx.x >= kSide * kSide || row >= p.m || column >= p.n) return;
  float v = 0;
#pragma unroll
  for (int i = 0; i < kF32Threads / 32; ++i) v += sums[i][threadIdx.x];
  if (p.bias) v += p.bias[column];
  if (p.y_bf16) {
    static_cast<__nv_bfloat16*>(p.y)[row * p.ldy + column] = __float2bfloat16(v);
  } else {
    float* y = static_cast<float*>(p.y) + row * p.ldy + column;
    *y = p.accumulate ? *y + v : v;
  }
}

}  // namespace

void dequantize(const DequantizeParams& p, CudaLayout layout, device::Stream& stream) {
  const auto launch = [&](auto kernel) {
    device::launch_kernel(
        stream, "dequantize",
        {.grid = blocks_for(tiles_of(p.rows) * blocks_of(p.k), kThreads / 32), .block = kThreads},
        {{"first_row", p.first_row}, {"rows", p.rows}, {"k", p.k}}, kernel, p);
  };
  switch (layout) {
    case CudaLayout::kCode4:
      return launch(dequantize_kernel<CudaLayout::kCode4>);
    case CudaLayout::kCode8:
      return launch(dequantize_kernel<CudaLayout::kCode8>);
    case CudaLayout::kCode8Min:
      return launch(dequantize_kernel<CudaLayout::kCode8Min>);
    case CudaLayout::kCode8Fine:
      return launch(dequantize_kernel<CudaLayout::kCode8Fine>);
    default:
      return;
  }
}

void add_bias(const LinearParams& p, device::Stream& stream) {
  const BiasParams b{p.y, p.ldy, p.m, p.weight->n, p.bias, p.y_dtype == DType::kBF16};
  device::launch_kernel(stream, "add_bias",
                        {.grid = blocks_for(int64_t{b.m} * b.n, kThreads), .block = kThreads},
                        {{"m", b.m}, {"n", b.n}}, bias_kernel, b);
}

void linear_f32(const LinearParams& p, device::Stream& stream) {
  const F32Params f{.x = static_cast<const float*>(p.x),
                    .w = p.weight->data.as<float>(),
                    .bias = p.bias,
                    .y = p.y,
                    .ldx = p.ldx,
                    .ldy = p.ldy,
                    .m = p.m,
                    .n = p.weight->n,
                    .k = p.weight->k,
                    .y_bf16 = p.y_dtype == DType::kBF16,
                    .accumulate = p.accumulate};
  device::launch_kernel(
      stream, "linear_f32",
      {.grid = dim3(blocks_for(f.n, kSide), blocks_for(f.m, kSide)), .block = kF32Threads},
      {{"m", f.m}, {"n", f.n}, {"k", f.k}}, linear_f32_kernel, f);
}

}  // namespace attune::ops::gemm
