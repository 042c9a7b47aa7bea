#include "formats/dequant.h"

#include <cstddef>
#include <cstring>

#include "tensor/half.h"

// Compiled with -ffp-contract=off (CMakeLists.txt): a product and a sum are rounded one after the
// other.

namespace attune::formats {
namespace {

using tensor::DType;

template <typename T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
float half_at(const uint8_t* p) {
  return tensor::f16_to_f32(load<uint16_t>(p));
}
// Of bytes whose low nibbles are elements 0..15 and high nibbles 16..31.
int nibble(const uint8_t* qs, int i) {
  return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

// {half d; uint8 qs[16]}: d * (q - 8)
void block_q4_0(const uint8_t* b, float* out) {
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) out[i] = d * float(nibble(b + 2, i) - 8);
}

// {half d, m; uint8 qs[16]}: d * q + m
void block_q4_1(const uint8_t* b, float* out) {
  const float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * float(nibble(b + 4, i)) + m;
}

// {half d; uint32 fifth bits; uint8 qs[16]}: d * (q - 16)
void block_q5_0(const uint8_t* b, float* out) {
  const float d = half_at(b);
  const uint32_t high = load<uint32_t>(b + 2);
  for (int i = 0; i < 32; ++i)
    out[i] = d * float((nibble(b + 6, i) | int((high >> i) & 1) << 4) - 16);
}

// {half d, m; uint32 fifth bits; uint8 qs[16]}: d * q + m
void block_q5_1(const uint8_t* b, float* out) {
  const float d = half_at(b), m = half_at(b + 2);
  const uint32_t high = load<uint32_t>(b + 4);
  for (int i = 0; i < 32; ++i) out[i] = d * float(nibble(b + 8, i) | int((high >> i) & 1) << 4) + m;
}

// {half d; int8 qs[32]}: d * q
void block_q8_0(const uint8_t* b, float* out) {
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) out[i] = d * float(int8_t(b[2 + i]));
}

// The 6-bit scale and minimum of group g of 8, packed into 12 bytes.
void scale_min_k4(const uint8_t* s, int g, float& scale, float& min) {
  if (g < 4) {
    scale = float(s[g] & 63);
    min = float(s[g + 4] & 63);
  } else {
    scale = float((s[g + 4] & 15) | ((s[g - 4] >> 6) << 4));
    min = float((s[g + 4] >> 4) | ((s[g] >> 6) << 4));
  }
}

// {half d, dmin; uint8 scales[12], qs[128]}: d * scale * q - dmin * min, 8 groups of 32;
// groups 2j and 2j + 1 are the low and high nibbles of qs[32j ..].
void block_q4_k(const uint8_t* b, float* out) {
  const float d = half_at(b), dmin = half_at(b + 2);
  for (int g = 0; g < 8; ++g) {
    float scale = 0, min = 0;
    scale_min_k4(b + 4, g, scale, min);
    const float ds = d * scale, dm = dmin * min;
    const uint8_t* qs = b + 16 + g / 2 * 32;
    for (int i = 0; i < 32; ++i) out[g * 32 + i] = ds * float((qs[i] >> (g % 2 * 4)) & 15) - dm;
  }
}

// {half d, dmin; uint8 scales[12], qh[32], qs[128]}: as Q4_K, with bit g of qh[i] as the fifth bit.
void block_q5_k(const uint8_t* b, float* out) {
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t* qh = b + 16;
  for (int g = 0; g < 8; ++g) {
    float scale = 0, min = 0;
    scale_min_k4(b + 4, g, scale, min);
    const float ds = d * scale, dm = dmin * min;
    const uint8_t* qs = b + 48 + g / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int q = ((qs[i] >> (g % 2 * 4)) & 15) | ((qh[i] >> g) & 1) << 4;
      out[g * 32 + i] = ds * float(q) - dm;
    }
  }
}

// {uint8 ql[128], qh[64]; int8 scales[16]; half d}: d * scale * (q - 32), 16 groups of 16.
void block_q6_k(const uint8_t* b, float* out) {
  const uint8_t *ql = b, *qh = b + 128, *scales = b + 192;
  const float d = half_at(b + 208);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128, run = e % 128 / 32, i = e % 32;
    const int low = (ql[half * 64 + run % 2 * 32 + i] >> (run / 2 * 4)) & 15;
    const int high = (qh[half * 32 + i] >> (run * 2)) & 3;
    out[e] = d * float(int8_t(scales[e / 16])) * float((low | high << 4) - 32);
  }
}

using BlockFn = void (*)(const uint8_t*, float*);

BlockFn block_fn(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return block_q4_0;
    case DType::kQ4_1:
      return block_q4_1;
    case DType::kQ5_0:
      return block_q5_0;
    case DType::kQ5_1:
      return block_q5_1;
    case DType::kQ8_0:
      return block_q8_0;
    case DType::kQ4_K:
      return block_q4_k;
    case DType::kQ5_K:
      return block_q5_k;
    case DType::kQ6_K:
      return block_q6_k;
    case DType::kF32:
      return [](const uint8_t* p, float* out) { *out = load<float>(p); };
    case DType::kF64:
      return [](const uint8_t* p, float* out) { *out = float(load<double>(p)); };
    case DType::kF16:
      return [](const uint8_t* p, float* out) { *out = half_at(p); };
    case DType::kBF16:
      return [](const uint8_t* p, float* out) { *out = tensor::bf16_to_f32(load<uint16_t>(p)); };
    case DType::kF8E4M3:
      return [](const uint8_t* p, float* out) { *out = tensor::f8e4m3_to_f32(*p); };
    case DType::kF8E5M2:
      return [](const uint8_t* p, float* out) { *out = tensor::f8e5m2_to_f32(*p); };
    case DType::kI8:
      return [](const uint8_t* p, float* out) { *out = float(int8_t(*p)); };
    case DType::kU8:
      return [](const uint8_t* p, float* out) { *out = float(*p); };
    case DType::kI16:
      return [](const uint8_t* p, float* out) { *out = float(load<int16_t>(p)); };
    case DType::kI32:
      return [](const uint8_t* p, float* out) { *out = float(load<int32_t>(p)); };
    case DType::kI64:
      return [](const uint8_t* p, float* out) { *out = float(load<int64_t>(p)); };
    case DType::kBool:
      break;
  }
  return nullptr;
}

}  // namespace

Status dequantize(DType dtype, const void* data, std::span<float> out) {
  const tensor::DTypeInfo& info = tensor::dtype_info(dtype);
  const BlockFn convert = block_fn(dtype);
  if (convert == nullptr) return unsupported(std::string(info.name) + " has no float32 values");
  const size_t block = size_t(info.block_elems);
  if (out.size() % block != 0)
    return invalid_argument(std::to_string(out.size()) + " elements do not divide into " +
                            info.name + " blocks of " + std::to_string(block));
  const auto* p = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < out.size(); i += block, p += info.block_bytes) convert(p, &out[i]);
  return {};
}

}  // namespace attune::formats
