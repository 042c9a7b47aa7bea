#include "model/transpose.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "formats/dequant.h"

namespace attune::model {
namespace {

using tensor::DType;

std::vector<float> values(const tensor::TensorView& view) {
  std::vector<float> out(static_cast<size_t>(view.shape.elems()));
  EXPECT_TRUE(formats::dequantize(view.dtype, view.data, out).ok());
  return out;
}

TEST(Transpose, EveryKindOfType) {
  constexpr int64_t kRows = 5, kColumns = 64;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_1}) {
    SCOPED_TRACE(tensor::dtype_name(dtype));
    std::vector<uint8_t> bytes(static_cast<size_t>(tensor::dtype_bytes(dtype, kRows * kColumns)));
    std::mt19937 rng(3);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng() & 0x3b);  // no NaN in any type
    const tensor::TensorView view{bytes.data(), dtype, {kRows, kColumns}};
    const Result<Transposed> turned = transpose(view);
    ASSERT_TRUE(turned.ok()) << turned.status().to_string();
    EXPECT_EQ(turned->view.shape, (tensor::Shape{kColumns, kRows}));
    const bool quantised = tensor::dtype_info(dtype).quantized;
    EXPECT_EQ(turned->view.dtype, quantised ? DType::kF32 : dtype);
    const std::vector<float> before = values(view), after = values(turned->view);
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c)
        ASSERT_EQ(before[r * kColumns + c], after[c * kRows + r]);
  }
}

}  // namespace
}  // namespace attune::model
