// For the tests and the benchmark of the products: random weights of every stored type.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"
#include "formats/dequant.h"
#include "ops/gemm/gemm.h"
#include "tensor/half.h"

namespace attune::ops::test {

using tensor::DType;

inline constexpr DType kWeightTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0,
                                         DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

struct RandomWeight {
  int64_t n, k;
  std::vector<uint8_t> bytes;
  tensor::TensorView view;
};

// Codes are any bytes; scales are about 1/sqrt(k), so that products with normal x are about 1.
inline RandomWeight random_weight(DType dtype, int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 rng(seed);
  RandomWeight w{n, k, std::vector<uint8_t>(tensor::dtype_bytes(dtype, n * k)), {}};
  for (uint8_t& b : w.bytes) b = static_cast<uint8_t>(rng());
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(k)));
  const tensor::DTypeInfo& info = tensor::dtype_info(dtype);
  const auto put = [&](uint8_t* p, float scale) {
    const uint16_t half = tensor::f32_to_f16(normal(rng) * scale);
    std::memcpy(p, &half, 2);
  };
  for (int64_t b = 0; b < n * k / info.block_elems; ++b) {
    uint8_t* p = w.bytes.data() + b * info.block_bytes;
    const float f = normal(rng);
    const uint16_t bf16 = tensor::f32_to_bf16(f);
    switch (dtype) {
      case DType::kF32:
        std::memcpy(p, &f, 4);
        break;
      case DType::kF16:
        put(p, 1);
        break;
      case DType::kBF16:
        std::memcpy(p, &bf16, 2);
        break;
      case DType::kQ4_1:
      case DType::kQ5_1:
        put(p + 2, 1);
        [[fallthrough]];
      case DType::kQ4_0:
      case DType::kQ5_0:
        put(p, 0.2f);
        break;
      case DType::kQ8_0:
        put(p, 0.02f);
        break;
      case DType::kQ4_K:
      case DType::kQ5_K:
        put(p, 0.005f);
        put(p + 2, 0.02f);
        break;
      case DType::kQ6_K:
        put(p + 208, 0.001f);
        break;
      default:
        ATTUNE_CHECK(false);
    }
  }
  w.view = {w.bytes.data(), dtype, {n, k}};
  return w;
}

inline std::vector<float> dequantized(const RandomWeight& w) {
  std::vector<float> out(w.n * w.k);
  ATTUNE_CHECK(formats::dequantize(w.view.dtype, w.bytes.data(), out).ok());
  return out;
}

}  // namespace attune::ops::test
