// Element types as they lie in files and memory. Quantised types are blocks; block_elems elements
// take block_bytes bytes (layouts: ggml's quantisation formats, see formats/dequant.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace attune::tensor {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

struct DTypeInfo {
  const char* name;  // "float32", "bfloat16", "q4_1", ...
  int32_t block_elems;
  int32_t block_bytes;
  bool quantized;
};

const DTypeInfo& dtype_info(DType dtype);
inline const char* dtype_name(DType dtype) {
  return dtype_info(dtype).name;
}
std::optional<DType> parse_dtype(std::string_view name);

// Bytes of `elems` consecutive elements. REQUIRES: elems is a multiple of the block size.
inline int64_t dtype_bytes(DType dtype, int64_t elems) {
  const DTypeInfo& info = dtype_info(dtype);
  return elems / info.block_elems * info.block_bytes;
}

}  // namespace attune::tensor
