#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "formats/dequant.h"
#include "ops/embed/random_table.h"
#include "ops/ops.h"
#include "ops/test_stream.h"
#include "tensor/half.h"

namespace attune::tensor {
// Found by GoogleTest where the type is.
static void PrintTo(DType dtype, std::ostream* out) {
  *out << dtype_name(dtype);
}
}  // namespace attune::tensor

namespace attune::ops {
namespace {

class EmbedTypes : public ::testing::TestWithParam<DType> {};

TEST_P(EmbedTypes, RowsAreBitEqualToTheOracle) {
  const DType dtype = GetParam();
  const int vocab = 9, hidden = 512, tokens = 200;
  const auto table = test::random_table(dtype, vocab * hidden);
  std::vector<float> want(vocab * hidden);
  ASSERT_TRUE(formats::dequantize(dtype, table.data(), want).ok());
  std::vector<int32_t> ids(tokens);
  for (int t = 0; t < tokens; ++t) ids[t] = (t * 5) % vocab;
  test::TestStream s(2);
  for (float scale : {1.0f, 2.5f}) {
    std::vector<float> out(tokens * hidden);
    s.run(cpu_ops(device::CpuIsa::kAvx2).embed,
          EmbedParams{ids.data(), tokens, table.data(), vocab, dtype, hidden, scale, out.data()});
    for (int t = 0; t < tokens; ++t)
      for (int i = 0; i < hidden; ++i)
        ASSERT_EQ(out[t * hidden + i], want[ids[t] * hidden + i] * scale) << t << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EmbedTypes,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0,
                                           DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                           DType::kQ4_K, DType::kQ5_K, DType::kQ6_K),
                         [](const auto& info) {
                           return std::string(tensor::dtype_name(info.param));
                         });

TEST(Embed, IdsOutsideOfTheVocabularyAreZeros) {
  const std::vector<float> table = {1, 2, 3, 4};
  const std::vector<int32_t> ids = {1, -1, 2, std::numeric_limits<int32_t>::min(), 0};
  std::vector<float> out(ids.size() * 2, 7.0f);
  test::TestStream s(1);
  s.run(cpu_ops(device::CpuIsa::kAvx2).embed,
        EmbedParams{ids.data(), 5, table.data(), 2, DType::kF32, 2, 1.0f, out.data()});
  EXPECT_EQ(out, (std::vector<float>{3, 4, 0, 0, 0, 0, 0, 0, 1, 2}));
}

}  // namespace
}  // namespace attune::ops
