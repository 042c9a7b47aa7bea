// For tests: an embedding table of any type.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "ops/test_stream.h"
#include "tensor/dtype.h"

namespace attune::ops::test {

// Random bytes, with every 16-bit float of a block's head made finite.
inline std::vector<uint8_t> random_table(tensor::DType dtype, int64_t elems) {
  const tensor::DTypeInfo& info = tensor::dtype_info(dtype);
  std::vector<uint8_t> bytes(tensor::dtype_bytes(dtype, elems));
  std::mt19937 rng(7);
  for (uint8_t& b : bytes) b = uint8_t(rng());
  if (dtype == tensor::DType::kF32) {
    const auto values = random_floats(elems, 8);
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  for (size_t at = 0; at < bytes.size(); at += info.block_bytes) {
    const int heads[2] = {dtype == tensor::DType::kQ6_K ? 208 : 0, 2};
    const bool two = dtype == tensor::DType::kQ4_1 || dtype == tensor::DType::kQ5_1 ||
                     dtype == tensor::DType::kQ4_K || dtype == tensor::DType::kQ5_K;
    if (!info.quantized && info.block_bytes != 2) break;
    for (int i = 0; i < (two ? 2 : 1); ++i)
      bytes[at + heads[i] + 1] = uint8_t((bytes[at + heads[i] + 1] & 0xbf) | 0x20);
  }
  return bytes;
}

}  // namespace attune::ops::test
