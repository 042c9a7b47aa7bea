// Lies here and not in src/tensor, since its golden data is a safetensors file.
#include "tensor/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <string>

#include "formats/safetensors.h"
#include "formats/test_files.h"

namespace attune::formats {
namespace {

// Golden: PyTorch's casts (tools/golden_formats_dequant.py).
class HalfTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<SafetensorsFile> file = SafetensorsFile::open(golden("half.safetensors"));
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    file_ = std::move(*file);
    for (const SafetensorsTensor& tensor : file_.tensors()) tensors_[tensor.name] = tensor.view;
    count_ = tensors_.at("f32").shape[0];
    ASSERT_GT(count_, 6000);
  }
  template <typename T>
  const T* get(const char* name) const {
    return static_cast<const T*>(tensors_.at(name).data);
  }

  // Compares a narrowing with the golden one and the way back; NaNs only for being NaN.
  template <typename Bits>
  void check(const char* name, Bits (*narrow)(float), float (*widen)(Bits)) const {
    const auto* inputs = get<float>("f32");
    const auto* expected = get<Bits>(name);
    for (int64_t i = 0; i < count_; ++i) {
      const Bits bits = narrow(inputs[i]);
      if (std::isnan(widen(expected[i])))
        ASSERT_TRUE(std::isnan(widen(bits))) << inputs[i];
      else
        ASSERT_EQ(bits, expected[i]) << name << " of " << inputs[i];
    }
  }

  SafetensorsFile file_;
  std::map<std::string, tensor::TensorView> tensors_;
  int64_t count_ = 0;
};

TEST_F(HalfTest, Narrowing) {
  check<uint16_t>("f16", tensor::f32_to_f16, tensor::f16_to_f32);
  check<uint16_t>("bf16", tensor::f32_to_bf16, tensor::bf16_to_f32);
  check<uint8_t>("f8_e4m3", tensor::f32_to_f8e4m3, tensor::f8e4m3_to_f32);
  check<uint8_t>("f8_e5m2", tensor::f32_to_f8e5m2, tensor::f8e5m2_to_f32);
}

TEST_F(HalfTest, WideningOfEveryByte) {
  const auto* e4m3 = get<float>("all_f8_e4m3");
  const auto* e5m2 = get<float>("all_f8_e5m2");
  for (int i = 0; i < 256; ++i) {
    const float a = tensor::f8e4m3_to_f32(uint8_t(i)), b = tensor::f8e5m2_to_f32(uint8_t(i));
    EXPECT_TRUE(a == e4m3[i] || (std::isnan(a) && std::isnan(e4m3[i]))) << i;
    EXPECT_TRUE(b == e5m2[i] || (std::isnan(b) && std::isnan(e5m2[i]))) << i;
  }
}

#ifdef __F16C__
// The processor's own conversions.
TEST_F(HalfTest, EveryHalfAsTheProcessorDoes) {
  typedef short V8 __attribute__((vector_size(16)));
  for (uint32_t i = 0; i < 65536; ++i) {
    const V8 packed = {short(i)};
    const float expected = __builtin_ia32_vcvtph2ps(packed)[0];
    const float actual = tensor::f16_to_f32(uint16_t(i));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual));
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(expected)) << i;
    ASSERT_EQ(tensor::f32_to_f16(actual), i);
  }
}
#endif

}  // namespace
}  // namespace attune::formats
