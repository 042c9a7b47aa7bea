#include "tensor/dtype.h"

#include <iterator>

#include "base/check.h"

namespace attune::tensor {
namespace {

constexpr DTypeInfo kInfos[] = {
    {"float32", 1, 4, false}, {"float16", 1, 2, false},  {"bfloat16", 1, 2, false},
    {"float64", 1, 8, false}, {"int8", 1, 1, false},     {"int16", 1, 2, false},
    {"int32", 1, 4, false},   {"int64", 1, 8, false},    {"uint8", 1, 1, false},
    {"bool", 1, 1, false},    {"fp8_e4m3", 1, 1, false}, {"fp8_e5m2", 1, 1, false},
    {"q4_0", 32, 18, true},   {"q4_1", 32, 20, true},    {"q5_0", 32, 22, true},
    {"q5_1", 32, 24, true},   {"q8_0", 32, 34, true},    {"q4_k", 256, 144, true},
    {"q5_k", 256, 176, true}, {"q6_k", 256, 210, true},
};

}  // namespace

const DTypeInfo& dtype_info(DType dtype) {
  const auto i = static_cast<size_t>(dtype);
  ATTUNE_CHECK(i < std::size(kInfos));
  return kInfos[i];
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < std::size(kInfos); ++i)
    if (name == kInfos[i].name) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace attune::tensor
