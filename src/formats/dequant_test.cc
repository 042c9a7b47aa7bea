#include "formats/dequant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "formats/test_files.h"

namespace attune::tensor {
// Found by GoogleTest where the type is.
static void PrintTo(DType dtype, std::ostream* out) {
  *out << dtype_name(dtype);
}
}  // namespace attune::tensor

namespace attune::formats {
namespace {

using tensor::DType;

std::map<std::string, tensor::TensorView> views(const SafetensorsFile& file) {
  std::map<std::string, tensor::TensorView> out;
  for (const SafetensorsTensor& tensor : file.tensors()) out[tensor.name] = tensor.view;
  return out;
}

// Golden: the gguf package's dequantize (tools/golden_formats_dequant.py).
class DequantGolden : public ::testing::TestWithParam<DType> {};

TEST_P(DequantGolden, BitEqual) {
  const Result<SafetensorsFile> file = SafetensorsFile::open(golden("dequant.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  auto tensors = views(*file);
  const std::map<DType, std::string> kNames = {{DType::kF16, "f16"}, {DType::kBF16, "bf16"}};
  const auto known = kNames.find(GetParam());
  const std::string name = known != kNames.end() ? known->second : tensor::dtype_name(GetParam());
  const tensor::TensorView data = tensors.at(name + ".bytes"), expected = tensors.at(name + ".f32");
  std::vector<float> out(size_t(expected.shape.elems()));
  ASSERT_EQ(out.size(), 2048u);
  ASSERT_EQ(data.bytes(), tensor::dtype_bytes(GetParam(), 2048));
  ASSERT_TRUE(dequantize(GetParam(), data.data, out).ok());
  const auto* want = static_cast<const float*>(expected.data);
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(std::memcmp(&out[i], &want[i], 4), 0) << i << ": " << out[i] << " vs " << want[i];
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantGolden,
                         ::testing::Values(DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                                           DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ4_K,
                                           DType::kQ5_K, DType::kQ6_K),
                         [](const auto& info) { return tensor::dtype_name(info.param); });

template <typename T>
std::vector<float> converted(DType dtype, const std::vector<T>& values) {
  std::vector<float> out(values.size());
  EXPECT_TRUE(dequantize(dtype, values.data(), out).ok());
  return out;
}

TEST(Dequant, PlainTypes) {
  using ::testing::ElementsAre;
  EXPECT_THAT(converted<float>(DType::kF32, {1.5f, -0.0f}), ElementsAre(1.5f, -0.0f));
  EXPECT_THAT(converted<double>(DType::kF64, {0.1, 1e300}), ElementsAre(0.1f, INFINITY));
  EXPECT_THAT(converted<int8_t>(DType::kI8, {-128, 127}), ElementsAre(-128.0f, 127.0f));
  EXPECT_THAT(converted<uint8_t>(DType::kU8, {0, 255}), ElementsAre(0.0f, 255.0f));
  EXPECT_THAT(converted<int16_t>(DType::kI16, {-300}), ElementsAre(-300.0f));
  EXPECT_THAT(converted<int32_t>(DType::kI32, {1 << 30}), ElementsAre(0x1p30f));
  EXPECT_THAT(converted<int64_t>(DType::kI64, {int64_t{1} << 40}), ElementsAre(0x1p40f));
  EXPECT_THAT(converted<uint8_t>(DType::kF8E4M3, {0x38, 0x7e}), ElementsAre(1.0f, 448.0f));
  EXPECT_THAT(converted<uint8_t>(DType::kF8E5M2, {0x3c, 0x7b}), ElementsAre(1.0f, 57344.0f));
}

TEST(Dequant, Refusals) {
  const uint8_t bytes[64] = {};
  std::vector<float> out(33);
  EXPECT_EQ(dequantize(DType::kQ4_0, bytes, out).code(), Code::kInvalidArgument);
  EXPECT_EQ(dequantize(DType::kBool, bytes, out).code(), Code::kUnsupported);
}

}  // namespace
}  // namespace attune::formats
