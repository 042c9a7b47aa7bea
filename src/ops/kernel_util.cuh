// What the small kernels share: sums of a warp and a block, and elements of the types that
// activations and caches have. For .cu files.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "device/cuda/launch.cuh"
#include "ops/ops.h"

namespace attune::ops::cuda {

using device::launch_kernel;
using device::LaunchShape;
using device::pdl_trigger;
using device::pdl_wait;

constexpr int32_t kWarp = 32;

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// A grid of one dimension. REQUIRES: below 2^31 blocks.
inline LaunchShape blocks_for(int64_t threads, uint32_t block) {
  return {.grid = dim3(static_cast<uint32_t>(ceil_div(threads, block))), .block = dim3(block)};
}

// Whether every address or stride is a multiple of `bytes`.
inline bool all_multiples(int64_t bytes, std::initializer_list<int64_t> values) {
  for (int64_t v : values)
    if (v % bytes != 0) return false;
  return true;
}
inline int64_t address(const void* p) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p));
}

// Of all lanes, in every lane.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  return v;
}

// What block_sum needs of shared memory, for blocks of at most kWarps warps, a multiple of four.
template <int kWarps>
struct alignas(16) WarpSums {
  float of[kWarps];
};

// Of all threads, in every thread; a sum in a fixed order. Every thread calls it, at most once per
// `sums`. Every thread reads the sums of all warps, in one go; shuffles take longer.
template <int kWarps>
__device__ __forceinline__ float block_sum(float v, WarpSums<kWarps>& sums) {
  v = warp_sum(v);
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) return v;
  if (thread >= warps && thread < kWarps) sums.of[thread] = 0;
  if (thread % kWarp == 0) sums.of[thread / kWarp] = v;
  __syncthreads();
  float4 four[kWarps / 4];
#pragma unroll
  for (int i = 0; i < kWarps / 4; ++i) four[i] = reinterpret_cast<const float4*>(sums.of)[i];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps / 4; ++i) sum += (four[i].x + four[i].y) + (four[i].z + four[i].w);
  return sum;
}

// 8-bit floats are told apart by type.
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(double x) {
  return static_cast<float>(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_float(E4m3 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}
__device__ __forceinline__ float to_float(E5m2 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E5M2)));
}

// Rounded to nearest, ties to even. 8-bit floats: too large, infinity too, becomes the largest
// finite number; NaN stays NaN (ops/convert.h says why).
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ E4m3 from_float<E4m3>(float x) {
  return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
}
template <>
__device__ __forceinline__ E5m2 from_float<E5m2>(float x) {
  return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)};
}

// N elements that are read and written at once. REQUIRES: the address is a multiple of N elements
// (of 16 bytes, if they are more).
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};

template <int N, typename T>
__device__ __forceinline__ void load(const T* from, float (&to)[N]) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_float(pack.v[i]);
}

template <int N, typename T>
__device__ __forceinline__ void store(const float (&from)[N], T* to) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.v[i] = from_float<T>(from[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// fn(T{}) with the element type of a float dtype.
template <typename Fn>
void with_element(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(float{});
    case DType::kBF16:
      return fn(__nv_bfloat16{});
    case DType::kF16:
      return fn(__half{});
    case DType::kF8E4M3:
      return fn(E4m3{});
    case DType::kF8E5M2:
      return fn(E5m2{});
    default:
      ATTUNE_CHECK(!"a type that activations and caches do not have");
  }
}

// The same of an activation: float32 or bfloat16.
template <typename Fn>
void with_activation(DType dtype, Fn&& fn) {
  if (dtype == DType::kF32) return fn(float{});
  ATTUNE_CHECK(dtype == DType::kBF16);
  fn(__nv_bfloat16{});
}

}  // namespace attune::ops::cuda
