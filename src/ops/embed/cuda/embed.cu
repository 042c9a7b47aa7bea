// Rows of embedding tables to float32. Block layouts and formulas: formats/dequant.h. Results are
// bit-equal to it: every product of a block's scale and a quantum is exact in float32, so it
// does not matter where a fused multiply-add is made.
#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr int kRun = 8;  // elements a thread makes; every block's sub-blocks are multiples of it

__device__ __forceinline__ float f16_at(const uint8_t* p) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(p[0] | p[1] << 8)));
}
__device__ __forceinline__ uint32_t u32_at(const uint8_t* p) {
  return p[0] | p[1] << 8 | p[2] << 16 | static_cast<uint32_t>(p[3]) << 24;
}

// Nibble of element e of 32: the low halves of 16 bytes are elements 0..15, the high ones 16..31.
__device__ __forceinline__ int nibble(const uint8_t* q, int e) {
  return e < 16 ? q[e] & 15 : q[e - 16] >> 4;
}

// 6-bit scale and minimum of sub-block j (0..7), packed in 12 bytes.
__device__ __forceinline__ void k_scale_min(const uint8_t* s, int j, float* scale, float* min) {
  if (j < 4) {
    *scale = static_cast<float>(s[j] & 63);
    *min = static_cast<float>(s[j + 4] & 63);
  } else {
    *scale = static_cast<float>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    *min = static_cast<float>((s[j + 4] >> 4) | (s[j] >> 6) << 4);
  }
}

// Elements [e, e + kRun) of the block at b.
template <DType kType>
__device__ __forceinline__ void decode(const uint8_t* b, int e, float (&y)[kRun]) {
  if constexpr (kType == DType::kQ4_0) {
    const float d = f16_at(b);
    for (int i = 0; i < kRun; ++i) y[i] = static_cast<float>(nibble(b + 2, e + i) - 8) * d;
  } else if constexpr (kType == DType::kQ4_1) {
    const float d = f16_at(b), m = f16_at(b + 2);
    for (int i = 0; i < kRun; ++i) y[i] = static_cast<float>(nibble(b + 4, e + i)) * d + m;
  } else if constexpr (kType == DType::kQ5_0) {
    const float d = f16_at(b);
    const uint32_t high = u32_at(b + 2) >> e;
    for (int i = 0; i < kRun; ++i) {
      const int q = nibble(b + 6, e + i) | static_cast<int>((high >> i) & 1) << 4;
      y[i] = static_cast<float>(q - 16) * d;
    }
  } else if constexpr (kType == DType::kQ5_1) {
    const float d = f16_at(b), m = f16_at(b + 2);
    const uint32_t high = u32_at(b + 4) >> e;
    for (int i = 0; i < kRun; ++i) {
      const int q = nibble(b + 8, e + i) | static_cast<int>((high >> i) & 1) << 4;
      y[i] = static_cast<float>(q) * d + m;
    }
  } else if constexpr (kType == DType::kQ8_0) {
    const float d = f16_at(b);
    for (int i = 0; i < kRun; ++i) y[i] = static_cast<float>(static_cast<int8_t>(b[2 + e + i])) * d;
  } else if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    // 8 sub-blocks of 32; 2j and 2j+1 share 32 bytes, low and high halves.
    constexpr bool kFifth = kType == DType::kQ5_K;
    const int j = e / 32, first = e % 32;
    float scale, min;
    k_scale_min(b + 4, j, &scale, &min);
    const float d = f16_at(b) * scale, m = f16_at(b + 2) * min;
    const uint8_t* high = b + 16 + first;
    const uint8_t* q = b + (kFifth ? 48 : 16) + j / 2 * 32 + first;
    for (int i = 0; i < kRun; ++i) {
      int v = j % 2 ? q[i] >> 4 : q[i] & 15;
      if (kFifth) v |= ((high[i] >> j) & 1) << 4;
      y[i] = d * static_cast<float>(v) - m;
    }
  } else {
    // Two halves of 128: 64 bytes of low nibbles, 32 of upper bit pairs, 8 signed scales of 16.
    static_assert(kType == DType::kQ6_K);
    const int half = e / 128, part = e % 128 / 32, first = e % 32;
    const uint8_t* low = b + half * 64 + part % 2 * 32 + first;
    const uint8_t* high = b + 128 + half * 32 + first;
    const float d = f16_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + e / 16]));
    for (int i = 0; i < kRun; ++i) {
      const int v = (part < 2 ? low[i] & 15 : low[i] >> 4) | ((high[i] >> (2 * part)) & 3) << 4;
      y[i] = d * static_cast<float>(v - 32);
    }
  }
}

__device__ __forceinline__ bool known(const EmbedParams& p, int32_t id) {
  return id >= 0 && id < p.vocab;
}

// Grid: tokens, pieces of a row.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    embed_blocks(EmbedParams p, int32_t block_elems, int32_t block_bytes) {
  pdl_trigger();
  pdl_wait();
  const int64_t token = blockIdx.x;
  const int at = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kRun;
  if (at >= p.hidden) return;
  const int32_t id = p.ids[token];
  float y[kRun] = {};
  if (known(p, id)) {
    const int64_t blocks = p.hidden / block_elems;
    const uint8_t* b =
        static_cast<const uint8_t*>(p.table) + (id * blocks + at / block_elems) * block_bytes;
    decode<kType>(b, at % block_elems, y);
  }
  float* out = p.out + token * p.hidden + at;
#pragma unroll
  for (int i = 0; i < kRun; ++i) y[i] *= p.scale;
  store(y, out);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) embed_elements(EmbedParams p) {
  pdl_trigger();
  pdl_wait();
  const int64_t token = blockIdx.x;
  const int at = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * N;
  if (at >= p.hidden) return;
  const int32_t id = p.ids[token];
  float y[N] = {};
  if (known(p, id)) load(static_cast<const T*>(p.table) + int64_t{id} * p.hidden + at, y);
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] *= p.scale;
  store(y, p.out + token * p.hidden + at);
}

LaunchShape shape(const EmbedParams& p, int each) {
  return {.grid = dim3(static_cast<uint32_t>(p.tokens),
                       static_cast<uint32_t>(ceil_div(p.hidden, int64_t{kThreads} * each))),
          .block = dim3(kThreads)};
}

template <DType kType>
void launch_blocks(const EmbedParams& p, Stream& stream) {
  const tensor::DTypeInfo& info = tensor::dtype_info(kType);
  launch_kernel(stream, "embed", shape(p, kRun), {{"tokens", p.tokens}, {"hidden", p.hidden}},
                embed_blocks<kType>, p, info.block_elems, info.block_bytes);
}

template <typename T>
void launch_elements(const EmbedParams& p, Stream& stream) {
  const bool packed = p.hidden % kRun == 0 && all_multiples(16, {address(p.table), address(p.out)});
  launch_kernel(stream, "embed", shape(p, packed ? kRun : 1),
                {{"tokens", p.tokens}, {"hidden", p.hidden}},
                packed ? embed_elements<T, kRun> : embed_elements<T, 1>, p);
}

}  // namespace

void embed(const EmbedParams& p, Stream& stream) {
  if (p.tokens == 0) return;
  switch (p.table_dtype) {
    case DType::kQ4_0:
      return launch_blocks<DType::kQ4_0>(p, stream);
    case DType::kQ4_1:
      return launch_blocks<DType::kQ4_1>(p, stream);
    case DType::kQ5_0:
      return launch_blocks<DType::kQ5_0>(p, stream);
    case DType::kQ5_1:
      return launch_blocks<DType::kQ5_1>(p, stream);
    case DType::kQ8_0:
      return launch_blocks<DType::kQ8_0>(p, stream);
    case DType::kQ4_K:
      return launch_blocks<DType::kQ4_K>(p, stream);
    case DType::kQ5_K:
      return launch_blocks<DType::kQ5_K>(p, stream);
    case DType::kQ6_K:
      return launch_blocks<DType::kQ6_K>(p, stream);
    case DType::kF64:
      return launch_elements<double>(p, stream);
    default:
      with_element(p.table_dtype, [&](auto e) { launch_elements<decltype(e)>(p, stream); });
  }
}

}  // namespace attune::ops::cuda
