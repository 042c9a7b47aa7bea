#include <gtest/gtest.h>

#include <cmath>

#include "ops/ops.h"
#include "ops/test_stream.h"
#include "tensor/half.h"

namespace attune::ops {
namespace {

using test::random_floats;
using test::TestStream;

const OpTable& table() {
  return cpu_ops(device::CpuIsa::kAvx2);
}

TEST(RmsNorm, MatchesDoubleAtEverySizeAndStride) {
  TestStream s(2);
  for (int n : {1, 7, 8, 31, 32, 33, 64, 576, 4099}) {
    const int rows = 5, ldx = n + 3, ldo = n + 5;
    const auto x = random_floats(rows * ldx, n), w = random_floats(n, n + 1);
    std::vector<float> out(rows * ldo, 99.0f);
    std::vector<uint16_t> out16(rows * ldo, 77);
    s.run(table().rms_norm,
          {x.data(), ldx, w.data(), 1e-5f, rows, n, out.data(), ldo, DType::kF32});
    s.run(table().rms_norm,
          {x.data(), ldx, w.data(), 1e-5f, rows, n, out16.data(), ldo, DType::kBF16});
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int i = 0; i < n; ++i) sum += double(x[r * ldx + i]) * x[r * ldx + i];
      const double inv = 1 / std::sqrt(sum / n + 1e-5);
      for (int i = 0; i < ldo; ++i) {
        if (i >= n) {  // between the rows: untouched
          ASSERT_EQ(out[r * ldo + i], 99.0f);
          ASSERT_EQ(out16[r * ldo + i], 77);
          continue;
        }
        const double want = x[r * ldx + i] * inv * w[i];
        ASSERT_NEAR(out[r * ldo + i], want, 1e-6 * (1 + std::abs(want))) << n;
        ASSERT_EQ(out16[r * ldo + i], tensor::f32_to_bf16(out[r * ldo + i]));
      }
    }
  }
}

TEST(RmsNorm, ARowsBitsDoNotDependOnTheOthers) {
  TestStream one(1), two(2);
  const int n = 576, rows = 300;
  const auto x = random_floats(rows * n, 1), w = random_floats(n, 2);
  std::vector<float> all(rows * n), single(n);
  two.run(table().rms_norm, {x.data(), n, w.data(), 1e-6f, rows, n, all.data(), n, DType::kF32});
  for (int r = 0; r < rows; r += 37) {
    one.run(table().rms_norm,
            {x.data() + r * n, n, w.data(), 1e-6f, 1, n, single.data(), n, DType::kF32});
    for (int i = 0; i < n; ++i) ASSERT_EQ(single[i], all[r * n + i]);
  }
}

TEST(RmsNorm, PicksRows) {
  TestStream s(2);
  const int n = 100, ldx = n + 1, count = 700;
  const auto x = random_floats(10 * ldx, 1), w = random_floats(n, 2);
  std::vector<int32_t> picks(count);
  for (int i = 0; i < count; ++i) picks[i] = (i * 3 + 7) % 10;
  std::vector<float> all(10 * n), out(count * n, 99.0f);
  s.run(table().rms_norm, {x.data(), ldx, w.data(), 1e-5f, 10, n, all.data(), n, DType::kF32});
  s.run(table().rms_norm,
        {x.data(), ldx, w.data(), 1e-5f, count, n, out.data(), n, DType::kF32, picks.data()});
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < n; ++k) ASSERT_EQ(out[i * n + k], all[picks[i] * n + k]) << i;
}

}  // namespace
}  // namespace attune::ops
