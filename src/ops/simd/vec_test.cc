#include "ops/simd/vec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tensor/half.h"

namespace attune::ops::simd {
namespace {

float exp1(float x) {
  float out[kLanes];
  store(out, exp(set1(x)));
  return out[0];
}

// Distance in representable floats; both of the same sign.
int64_t ulps(float a, float b) {
  return std::abs(int64_t(std::bit_cast<int32_t>(a)) - int64_t(std::bit_cast<int32_t>(b)));
}

TEST(SimdExp, WithinTwoUlpOverTheWholeRange) {
  int64_t worst = 0;
  for (double x = -104.5; x < 88.72; x += 0.00037) {
    const float arg = float(x);
    worst = std::max(worst, ulps(exp1(arg), float(std::exp(double(arg)))));
  }
  EXPECT_LE(worst, 2);
}

TEST(SimdExp, EdgesAreExact) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp1(0.0f), 1.0f);
  EXPECT_EQ(exp1(-0.0f), 1.0f);
  EXPECT_EQ(exp1(-inf), 0.0f);
  EXPECT_EQ(exp1(-1e30f), 0.0f);
  EXPECT_EQ(exp1(inf), inf);
  EXPECT_EQ(exp1(1e30f), inf);
  EXPECT_EQ(exp1(89.0f), inf);
  EXPECT_TRUE(std::isnan(exp1(std::numeric_limits<float>::quiet_NaN())));
}

TEST(SimdHalf, RoundsAsTheScalarConversionsDo) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.0f,     -0.0f,    1.0f,  1.00390625f, 1.01171875f, 65504.0f,
                               65519.0f, 65520.0f, 1e-7f, -3e-8f,      inf,         -inf};
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 0x10ff7u)
    values.push_back(std::bit_cast<float>(bits));
  for (float v : values) {
    uint16_t out[kLanes];
    store_half(out, to_bf16(set1(v)));
    ASSERT_EQ(out[0], tensor::f32_to_bf16(v)) << v;
    store_half(out, to_f16(set1(v)));
    ASSERT_EQ(out[0], tensor::f32_to_f16(v)) << v;
  }
  uint16_t out[kLanes];
  store_half(out, to_bf16(set1(std::bit_cast<float>(0x7f800001u))));
  EXPECT_TRUE(std::isnan(tensor::bf16_to_f32(out[0])));
}

TEST(SimdReduce, SumAndMaxOverAllLanes) {
  float in[kLanes];
  for (int i = 0; i < kLanes; ++i) in[i] = float(i) - 3;
  EXPECT_EQ(hsum(load(in)), float(kLanes * (kLanes - 1) / 2 - 3 * kLanes));
  EXPECT_EQ(hmax(load(in)), float(kLanes - 4));
  EXPECT_EQ(hsum(load(in, first(2))), -5.0f);
}

}  // namespace
}  // namespace attune::ops::simd
