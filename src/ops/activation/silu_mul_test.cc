#include <gtest/gtest.h>

#include <cmath>

#include "ops/ops.h"
#include "ops/test_stream.h"
#include "tensor/half.h"

namespace attune::ops {
namespace {

TEST(SiluMul, MatchesDoubleAndLeavesTheGapsAlone) {
  test::TestStream s(2);
  for (int n : {1, 8, 13, 1536}) {
    const int rows = 9, ldx = 2 * n + 2, ldo = n + 1;
    auto x = test::random_floats(rows * ldx, n, 4.0f);
    x[0] = -100.0f;  // exp(100) overflows float32; the result must not
    std::vector<float> out(rows * ldo, 99.0f);
    std::vector<uint16_t> out16(rows * ldo, 77);
    const auto op = cpu_ops(device::CpuIsa::kAvx2).silu_mul;
    s.run(op, SiluMulParams{x.data(), DType::kF32, ldx, rows, n, out.data(), ldo, DType::kF32});
    s.run(op, SiluMulParams{x.data(), DType::kF32, ldx, rows, n, out16.data(), ldo, DType::kBF16});
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < n; ++i) {
        const double gate = x[r * ldx + i], up = x[r * ldx + n + i];
        const double want = gate / (1 + std::exp(-gate)) * up;
        ASSERT_NEAR(out[r * ldo + i], want, 1e-6 * std::abs(want) + 1e-37);
        ASSERT_EQ(out16[r * ldo + i], tensor::f32_to_bf16(out[r * ldo + i]));
      }
      ASSERT_EQ(out[r * ldo + n], 99.0f);
      ASSERT_EQ(out16[r * ldo + n], 77);
    }
  }
}

}  // namespace
}  // namespace attune::ops
