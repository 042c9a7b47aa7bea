// Scalar conversions between float32 and the 16- and 8-bit floats. Narrowing rounds to nearest,
// ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace attune::tensor {

// IEEE binary16; exact.
inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = float(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// Too large becomes infinity; NaN stays NaN.
inline uint16_t f32_to_f16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u | uint16_t((magnitude >> 13) & 0x1ffu);
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above
  if (magnitude < 0x38800000u) {                        // below the smallest normal
    // Adding 0.5 aligns the mantissa so that its unit is 2^-24; the addition rounds to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | uint16_t(std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | uint16_t((rounded - 0x38000000u) >> 13);
}

inline float bf16_to_f32(uint16_t h) {
  return std::bit_cast<float>(uint32_t(h) << 16);
}

inline uint16_t f32_to_bf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);  // quiet NaN
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// E4M3 "fn": no infinities, 0x7f and 0xff are NaN, largest 448 (OCP 8-bit floating point
// specification).
inline float f8e4m3_to_f32(uint8_t v) {
  const uint32_t sign = uint32_t(v & 0x80u) << 24;
  const uint32_t exponent = (v >> 3) & 0xfu;
  const uint32_t mantissa = v & 7u;
  if ((v & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(mantissa) * 0x1p-9f));
}

// Too large, infinity too, becomes 448 of its sign, as in today's PyTorch; NaN stays NaN.
inline uint8_t f32_to_f8e4m3(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint8_t sign = uint8_t((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;
  if (magnitude < 0x3c800000u) {  // below 2^-6: unit 2^-9, by adding 2^14
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
    return sign | uint8_t(std::bit_cast<uint32_t>(shifted) - 0x46800000u);
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return sign | uint8_t((rounded - 0x3c000000u) >> 20);
}

// E5M2: the upper byte of binary16.
inline float f8e5m2_to_f32(uint8_t v) {
  return f16_to_f32(uint16_t(v) << 8);
}

// Too large becomes infinity; NaN stays NaN.
inline uint8_t f32_to_f8e5m2(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint8_t sign = uint8_t((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= 0x47700000u) return sign | 0x7cu;  // 61440 and above
  if (magnitude < 0x38800000u) {                      // below 2^-14: unit 2^-16, by adding 2^7
    const float shifted = std::bit_cast<float>(magnitude) + 128.0f;
    return sign | uint8_t(std::bit_cast<uint32_t>(shifted) - 0x43000000u);
  }
  const uint32_t rounded = magnitude + 0xfffffu + ((magnitude >> 21) & 1u);
  return sign | uint8_t((rounded - 0x38000000u) >> 21);
}

}  // namespace attune::tensor
