#include <limits>

#include "formats/dequant.h"
#include "ops/cuda_kernels.h"
#include "ops/embed/random_table.h"
#include "ops/gpu_test_util.h"

namespace attune::ops {
namespace {

using test::random_floats;
using test::random_table;

class CudaEmbed : public test::GpuTest {
 protected:
  void check(DType dtype, int32_t hidden, int32_t tokens, float scale) {
    const int32_t vocab = 9;
    const auto table = random_table(dtype, vocab * hidden);
    std::vector<float> want(vocab * hidden);
    ASSERT_TRUE(formats::dequantize(dtype, table.data(), want).ok());
    std::vector<int32_t> ids(tokens);
    for (int32_t t = 0; t < tokens; ++t) ids[t] = (t * 5) % vocab;
    if (tokens > 3) ids[1] = -1, ids[2] = vocab, ids[3] = std::numeric_limits<int32_t>::min();
    const size_t size = static_cast<size_t>(tokens) * hidden;
    float* out = output<float>(size);
    run(cuda::embed,
        EmbedParams{upload(ids), tokens, upload(table), vocab, dtype, hidden, scale, out});
    const auto got = download(out, size);
    for (int32_t t = 0; t < tokens; ++t) {
      const bool known = ids[t] >= 0 && ids[t] < vocab;
      for (int32_t i = 0; i < hidden; ++i) {
        const float w = known ? want[ids[t] * hidden + i] * scale : 0.0f;
        if (std::isnan(w)) {
          ASSERT_TRUE(std::isnan(got[t * hidden + i]));
        } else {
          ASSERT_EQ(got[t * hidden + i], w)
              << tensor::dtype_name(dtype) << ", token " << t << ", element " << i;
        }
      }
    }
  }
};

TEST_F(CudaEmbed, EveryTypeIsBitEqualToTheOracle) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kF8E4M3,
                      DType::kF8E5M2, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                      DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    for (float scale : {1.0f, 2.5f}) {
      check(dtype, 512, 37, scale);
      check(dtype, 2304, 5, scale);
      check(dtype, 256, 0, scale);
    }
    if (!tensor::dtype_info(dtype).quantized) check(dtype, 77, 9, 1.0f);
  }
}

// A table whose last rows lie beyond 2^31 elements.
TEST_F(CudaEmbed, TableBeyondTwoToThe31) {
  const int32_t hidden = 65536, vocab = 40000;  // 5.2 GB of bf16
  auto* table = static_cast<uint16_t*>(allocate(static_cast<size_t>(hidden) * vocab * 2));
  ASSERT_NE(table, nullptr);
  const auto row = random_floats(hidden, 3);
  std::vector<uint16_t> half(hidden);
  for (int32_t i = 0; i < hidden; ++i) half[i] = tensor::f32_to_bf16(row[i]);
  stream_->copy(table + int64_t{vocab - 1} * hidden, half.data(), hidden * 2);
  float* out = output<float>(hidden);
  run(cuda::embed, EmbedParams{upload(std::vector<int32_t>{vocab - 1}), 1, table, vocab,
                               DType::kBF16, hidden, 1.0f, out});
  const auto got = download(out, hidden);
  for (int32_t i = 0; i < hidden; ++i) ASSERT_EQ(got[i], tensor::bf16_to_f32(half[i]));
}

}  // namespace
}  // namespace attune::ops
