#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "attention/backends/flashinfer/results.h"
#include "device/cuda/launch.cuh"

namespace attune::attention::flashinfer {
namespace {

constexpr int kThreads = 256;
constexpr float kNothing =
    -4e4f;  // below this no key was seen: its minus infinity is -5e4 (math.cuh)
constexpr float kLn2 = 0.69314718055994530942f;

__global__ void natural_log(float* lse, const int32_t* rows, int32_t heads) {
  device::pdl_wait();
  device::pdl_trigger();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < int64_t{*rows} * heads) lse[i] = lse[i] < kNothing ? -INFINITY : lse[i] * kLn2;
}

// A block to a row, so that a row's place needs no division.
__global__ void spread_rows(const uint2* from, uint2* to, const int32_t* rows, int64_t width,
                            int64_t stride) {
  device::pdl_wait();
  device::pdl_trigger();
  const int64_t row = blockIdx.x;
  if (row >= *rows) return;
  for (int64_t i = threadIdx.x; i < width; i += kThreads)
    to[row * stride + i] = from[row * width + i];
}

constexpr int kRun = 8;  // elements of one load

__device__ __forceinline__ __half to_half(float x) {
  constexpr float kMost = 65504;
  return __float2half_rn(x > kMost ? kMost : x < -kMost ? -kMost : x);  // NaN stays
}

__global__ void to_float16(const __nv_bfloat16* from, int64_t stride, __half* to,
                           const int32_t* rows, int64_t width) {
  device::pdl_wait();
  device::pdl_trigger();
  const int64_t row = blockIdx.x;
  if (row >= *rows) return;
  for (int64_t at = threadIdx.x * kRun; at < width; at += kThreads * kRun) {
    union {
      uint4 bits;
      __nv_bfloat16 x[kRun];
    } in;
    union {
      uint4 bits;
      __half x[kRun];
    } out;
    in.bits = *reinterpret_cast<const uint4*>(from + row * stride + at);
#pragma unroll
    for (int i = 0; i < kRun; ++i) out.x[i] = to_half(__bfloat162float(in.x[i]));
    *reinterpret_cast<uint4*>(to + row * width + at) = out.bits;
  }
}

}  // namespace

void launch_natural_log(device::Stream& stream, float* lse, const int32_t* rows, int32_t max_rows,
                        int32_t heads) {
  const int64_t n = int64_t{max_rows} * heads;
  if (n == 0) return;
  const auto blocks = static_cast<uint32_t>((n + kThreads - 1) / kThreads);
  device::launch_kernel(stream, "natural_log", {dim3(blocks), dim3(kThreads)}, {{"n", n}},
                        natural_log, lse, rows, heads);
}

void launch_spread_rows(device::Stream& stream, const void* from, void* to, const int32_t* rows,
                        int32_t max_rows, int64_t width, int64_t stride) {
  if (max_rows == 0) return;
  constexpr int64_t kElements = sizeof(uint2) / 2;
  device::launch_kernel(
      stream, "spread_rows", {dim3(static_cast<uint32_t>(max_rows)), dim3(kThreads)},
      {{"width", width}, {"stride", stride}}, spread_rows, static_cast<const uint2*>(from),
      static_cast<uint2*>(to), rows, width / kElements, stride / kElements);
}

void launch_to_float16(device::Stream& stream, const void* from, int64_t stride, void* to,
                       const int32_t* rows, int32_t max_rows, int64_t width) {
  if (max_rows == 0) return;
  device::launch_kernel(
      stream, "to_float16", {dim3(static_cast<uint32_t>(max_rows)), dim3(kThreads)},
      {{"width", width}, {"stride", stride}}, to_float16, static_cast<const __nv_bfloat16*>(from),
      stride, static_cast<__half*>(to), rows, width);
}

}  // namespace attune::attention::flashinfer
