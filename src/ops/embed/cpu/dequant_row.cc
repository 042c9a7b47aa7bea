#include "ops/embed/cpu/dequant_row.h"

#include <cstring>

#include "base/check.h"
#include "ops/simd/vec.h"
#include "tensor/half.h"

namespace attune::ops::cpu {
namespace {

using tensor::DType;

float f16_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return tensor::f16_to_f32(h);
}

// 32 quants of 4 bits: the low halves are elements 0..15, the high ones 16..31.
void q4_0(const uint8_t* b, float* y) {
  const float d = f16_at(b);
  for (int i = 0; i < 16; ++i) {
    y[i] = float((b[2 + i] & 15) - 8) * d;
    y[i + 16] = float((b[2 + i] >> 4) - 8) * d;
  }
}

void q4_1(const uint8_t* b, float* y) {
  const float d = f16_at(b), m = f16_at(b + 2);
  for (int i = 0; i < 16; ++i) {
    y[i] = float(b[4 + i] & 15) * d + m;
    y[i + 16] = float(b[4 + i] >> 4) * d + m;
  }
}

// The fifth bits of all 32 stand before the halves.
void q5_0(const uint8_t* b, float* y) {
  const float d = f16_at(b);
  uint32_t high;
  std::memcpy(&high, b + 2, 4);
  for (int i = 0; i < 16; ++i) {
    y[i] = float(int((b[6 + i] & 15) | ((high >> i) & 1) << 4) - 16) * d;
    y[i + 16] = float(int((b[6 + i] >> 4) | ((high >> (i + 16)) & 1) << 4) - 16) * d;
  }
}

void q5_1(const uint8_t* b, float* y) {
  const float d = f16_at(b), m = f16_at(b + 2);
  uint32_t high;
  std::memcpy(&high, b + 4, 4);
  for (int i = 0; i < 16; ++i) {
    y[i] = float((b[8 + i] & 15) | ((high >> i) & 1) << 4) * d + m;
    y[i + 16] = float((b[8 + i] >> 4) | ((high >> (i + 16)) & 1) << 4) * d + m;
  }
}

void q8_0(const uint8_t* b, float* y) {
  const float d = f16_at(b);
  for (int i = 0; i < 32; ++i) y[i] = float(int8_t(b[2 + i])) * d;
}

// 6-bit scale and minimum of sub-block j (0..7), packed in 12 bytes.
void k_scale_min(const uint8_t* s, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  }
}

// 8 sub-blocks of 32; sub-blocks 2j and 2j+1 share 32 bytes, low and high halves.
void q4_k(const uint8_t* b, float* y) {
  const float d = f16_at(b), dmin = f16_at(b + 2);
  const uint8_t* q = b + 16;
  for (int j = 0; j < 8; ++j) {
    int scale, min;
    k_scale_min(b + 4, j, &scale, &min);
    const float ds = d * float(scale), m = dmin * float(min);
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = q[(j / 2) * 32 + i];
      y[j * 32 + i] = ds * float(j % 2 ? byte >> 4 : byte & 15) - m;
    }
  }
}

// As q4_k, with bit j of byte i of 32 more bytes as the fifth bit of element i of sub-block j.
void q5_k(const uint8_t* b, float* y) {
  const float d = f16_at(b), dmin = f16_at(b + 2);
  const uint8_t *high = b + 16, *q = b + 48;
  for (int j = 0; j < 8; ++j) {
    int scale, min;
    k_scale_min(b + 4, j, &scale, &min);
    const float ds = d * float(scale), m = dmin * float(min);
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = q[(j / 2) * 32 + i];
      const int low = j % 2 ? byte >> 4 : byte & 15;
      y[j * 32 + i] = ds * float(low | ((high[i] >> j) & 1) << 4) - m;
    }
  }
}

// Two halves of 128: 64 bytes of low nibbles, 32 bytes of upper bit pairs, 8 signed scales of 16.
void q6_k(const uint8_t* b, float* y) {
  const float d = f16_at(b + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
    const uint8_t* scales = b + 192 + half * 8;
    for (int e = 0; e < 128; ++e) {
      const int part = e / 32, i = e % 32;
      const uint8_t byte = low[(part % 2) * 32 + i];
      const int bits = (part < 2 ? byte & 15 : byte >> 4) | ((high[i] >> (2 * part)) & 3) << 4;
      y[half * 128 + e] = d * float(int8_t(scales[e / 16])) * float(bits - 32);
    }
  }
}

template <typename T, typename Fn>
void elements(const void* row, int64_t n, float* out, Fn convert) {
  for (int64_t i = 0; i < n; ++i) {
    T v;
    std::memcpy(&v, static_cast<const char*>(row) + i * sizeof(T), sizeof(T));
    out[i] = convert(v);
  }
}

void f16_elements(const void* row, int64_t n, float* out) {
  const uint16_t* p = static_cast<const uint16_t*>(row);
  int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes)
    simd::store(out + i, simd::from_f16(simd::load_half(p + i)));
  if (i < n) elements<uint16_t>(p + i, n - i, out + i, tensor::f16_to_f32);
}

using BlockFn = void (*)(const uint8_t*, float*);

BlockFn block_fn(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return q4_0;
    case DType::kQ4_1:
      return q4_1;
    case DType::kQ5_0:
      return q5_0;
    case DType::kQ5_1:
      return q5_1;
    case DType::kQ8_0:
      return q8_0;
    case DType::kQ4_K:
      return q4_k;
    case DType::kQ5_K:
      return q5_k;
    case DType::kQ6_K:
      return q6_k;
    default:
      return nullptr;
  }
}

}  // namespace

void dequant_row(DType dtype, const void* row, int64_t n, float* out) {
  if (const BlockFn fn = block_fn(dtype)) {
    const tensor::DTypeInfo& info = tensor::dtype_info(dtype);
    const uint8_t* b = static_cast<const uint8_t*>(row);
    for (int64_t i = 0; i < n; i += info.block_elems, b += info.block_bytes) fn(b, out + i);
    return;
  }
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, row, size_t(n) * 4);
      return;
    case DType::kF16:
      return f16_elements(row, n, out);
    case DType::kBF16:
      return elements<uint16_t>(row, n, out, tensor::bf16_to_f32);
    case DType::kF64:
      return elements<double>(row, n, out, [](double v) { return float(v); });
    case DType::kF8E4M3:
      return elements<uint8_t>(row, n, out, tensor::f8e4m3_to_f32);
    case DType::kF8E5M2:
      return elements<uint8_t>(row, n, out, tensor::f8e5m2_to_f32);
    default:
      ATTUNE_CHECK(!"an embedding table of this type; the weight loader refuses it before");
  }
}

}  // namespace attune::ops::cpu
