#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/gemm/gemm_test_util.h"
#include "ops/ops.h"
#include "ops/test_stream.h"

namespace attune::ops {
namespace {

using device::CpuIsa;
using test::DType;
using test::TestStream;

constexpr float kPoison = 12345.0f;

struct Case {
  DType dtype;
  int64_t n, k, m;
  bool bias = false, accumulate = false, deterministic = false;
  int64_t pad = 3;  // of the rows of x and y
};

// A level, and a type of activations that it has.
struct Config {
  CpuIsa isa;
  DType act;
};
void PrintTo(const Config& c, std::ostream* out) {
  *out << device::cpu_isa_name(c.isa) << " " << tensor::dtype_name(c.act);
}

std::string describe(const Case& c) {
  return std::string(tensor::dtype_name(c.dtype)) + " n=" + std::to_string(c.n) +
         " k=" + std::to_string(c.k) + " m=" + std::to_string(c.m) + (c.bias ? " bias" : "") +
         (c.accumulate ? " accumulate" : "") + (c.deterministic ? " deterministic" : "");
}

// What this machine can run.
std::vector<Config> configs() {
  std::vector<Config> all;
  for (int i = 0; i <= static_cast<int>(device::detect_cpu_isa()); ++i)
    all.push_back({static_cast<CpuIsa>(i), DType::kF32});
  if (device::detect_cpu_isa() >= CpuIsa::kAvx512Bf16)
    all.push_back({CpuIsa::kAvx512Bf16, DType::kBF16});
  return all;
}

// To bfloat16 and back.
std::vector<float> rounded(std::vector<float> v) {
  for (float& f : v) f = tensor::bf16_to_f32(tensor::f32_to_bf16(f));
  return v;
}

class LinearTest : public testing::TestWithParam<Config> {
 protected:
  std::vector<float> random_x(size_t count, uint32_t seed) {
    auto x = test::random_floats(count, seed);
    return GetParam().act == DType::kBF16 ? rounded(x) : x;
  }
  // The weight as the kernels see it: bfloat16 activations go with float weights of bfloat16.
  std::vector<float> reference_weight(const test::RandomWeight& raw) {
    const std::vector<float> w = test::dequantized(raw);
    const bool quantised = tensor::dtype_info(raw.view.dtype).quantized;
    return GetParam().act == DType::kBF16 && !quantised ? rounded(w) : w;
  }
  Result<PackedWeight> pack(const test::RandomWeight& raw) {
    return pack_weight({raw.view}, GetParam().act, stream_.device(), stream_.stream());
  }

  // y of one call; outside [m, n] it must stay kPoison.
  std::vector<float> call(const PackedWeight& w, const std::vector<float>& x, int64_t ldx,
                          int64_t m, std::vector<float> y, int64_t ldy, const float* bias,
                          bool accumulate, bool deterministic, TestStream& stream) {
    std::vector<uint16_t> halves;
    for (float f : x) halves.push_back(tensor::f32_to_bf16(f));
    const DType act = GetParam().act;
    const LinearParams p{.x = act == DType::kBF16 ? static_cast<const void*>(halves.data())
                                                  : static_cast<const void*>(x.data()),
                         .x_dtype = act,
                         .ldx = ldx,
                         .m = static_cast<int32_t>(m),
                         .weight = &w,
                         .bias = bias,
                         .y = y.data(),
                         .ldy = ldy,
                         .accumulate = accumulate,
                         .deterministic = deterministic};
    stream.run(cpu_ops(GetParam().isa).linear, p);
    return y;
  }

  void check(const Case& c) {
    SCOPED_TRACE(describe(c));
    const auto raw = test::random_weight(c.dtype, c.n, c.k, 1 + c.n + c.k);
    const auto packed = pack(raw);
    ASSERT_TRUE(packed.ok()) << packed.status().to_string();
    const std::vector<float> w = reference_weight(raw);
    const int64_t ldx = c.k + c.pad, ldy = c.n + c.pad;
    auto x = random_x(c.m * ldx, 2);
    for (int64_t r = 0; r < c.m; ++r)  // what lies behind a row must not matter
      for (int64_t i = c.k; i < ldx; ++i) x[r * ldx + i] = std::numeric_limits<float>::quiet_NaN();
    const auto bias = test::random_floats(c.n, 3);
    std::vector<float> y(c.m * ldy, kPoison);
    for (int64_t r = 0; r < c.m; ++r)
      for (int64_t i = 0; i < c.n; ++i)
        y[r * ldy + i] = c.accumulate ? 0.25f * static_cast<float>(i % 7)
                                      : std::numeric_limits<float>::quiet_NaN();
    const auto out = call(*packed, x, ldx, c.m, y, ldy, c.bias ? bias.data() : nullptr,
                          c.accumulate, c.deterministic, stream_);
    for (int64_t r = 0; r < c.m; ++r) {
      for (int64_t i = 0; i < c.n; ++i) {
        double want = c.accumulate ? y[r * ldy + i] : 0.0, size = 1;
        if (c.bias) want += bias[i];
        for (int64_t j = 0; j < c.k; ++j) {
          const double term = double(x[r * ldx + j]) * w[i * c.k + j];
          want += term;
          size += std::abs(term);
        }
        // Wider than the terms' rounding: d * code and m are summed apart and partly cancel.
        ASSERT_NEAR(out[r * ldy + i], want, 1.5e-6 * size) << "row " << r << ", column " << i;
      }
      for (int64_t i = c.n; i < ldy; ++i) ASSERT_EQ(out[r * ldy + i], kPoison) << "wrote past n";
    }
  }

  TestStream stream_{2};
};

INSTANTIATE_TEST_SUITE_P(Levels, LinearTest, testing::ValuesIn(configs()), [](const auto& info) {
  return std::string(device::cpu_isa_name(info.param.isa)) + "_" +
         tensor::dtype_name(info.param.act);
});

TEST_P(LinearTest, EveryFormatAgainstDoublePrecision) {
  for (DType dtype : test::kWeightTypes) {
    const int64_t block = tensor::dtype_info(dtype).block_elems;
    const int64_t unit = block == 256 ? 256 : 32;
    for (int64_t k : {unit, 3 * unit, unit == 32 ? int64_t{1536} : int64_t{1792}})
      for (int64_t n : {1, 16, 31, 77})
        for (int64_t m : {1, 2, 7, 13}) check({dtype, n, k, m});
  }
}

TEST_P(LinearTest, EveryRowCountOfTheTiles) {
  for (int64_t m = 1; m <= 40; ++m) {
    check({DType::kQ4_1, 40, 64, m});
    check({DType::kQ6_K, 40, 256, m});
    check({DType::kBF16, 40, 37, m});
  }
}

TEST_P(LinearTest, FloatWeightsOfAnyK) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    for (int64_t k : {1, 2, 3, 5, 31, 33, 577, 1153})
      for (int64_t m : {1, 4, 9}) check({dtype, 33, k, m});
}

TEST_P(LinearTest, BiasAndAccumulateInEveryPath) {
  for (bool bias : {false, true})
    for (bool accumulate : {false, true})
      for (bool deterministic : {false, true})
        for (int64_t m : {1, 3, 5, 140})
          check({DType::kQ4_1, 45, 1216, m, bias, accumulate, deterministic});
}

TEST_P(LinearTest, BugG24_ARowsBitsDependOnNothingElse) {
  const auto raw = test::random_weight(DType::kQ4_1, 200, 1536, 5);
  const auto packed = pack(raw);
  ASSERT_TRUE(packed.ok());
  const int64_t n = 200, k = 1536, most = 300;
  const auto x = random_x(most * k, 6);
  TestStream one(1), five(5);
  const auto all =
      call(*packed, x, k, most, std::vector<float>(most * n), n, nullptr, false, true, stream_);
  for (TestStream* stream : {&stream_, &one, &five}) {
    for (int64_t m : {1, 2, 3, 5, 6, 8, 12, 13, 31, 127, 300}) {
      for (int64_t row : {int64_t{0}, int64_t{1}, (most - m) / 2, most - m}) {
        if (row < 0 || row + m > most) continue;
        const std::vector<float> part(x.begin() + row * k, x.begin() + (row + m) * k);
        const auto y =
            call(*packed, part, k, m, std::vector<float>(m * n), n, nullptr, false, true, *stream);
        ASSERT_EQ(0, std::memcmp(y.data(), all.data() + row * n, m * n * sizeof(float)))
            << "m " << m << " from row " << row;
      }
    }
  }
}

TEST_P(LinearTest, NanStaysInItsRow) {
  const int64_t n = 50, k = 96, m = 14;
  const auto raw = test::random_weight(DType::kQ4_0, n, k, 7);
  const auto packed = pack(raw);
  ASSERT_TRUE(packed.ok());
  auto x = random_x(m * k, 8);
  const auto clean =
      call(*packed, x, k, m, std::vector<float>(m * n), n, nullptr, false, false, stream_);
  x[5 * k + 11] = std::numeric_limits<float>::quiet_NaN();
  x[9 * k] = std::numeric_limits<float>::infinity();
  const auto y =
      call(*packed, x, k, m, std::vector<float>(m * n), n, nullptr, false, false, stream_);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      if (r == 5 || r == 9) {
        ASSERT_FALSE(std::isfinite(y[r * n + i]));
      } else {
        ASSERT_EQ(y[r * n + i], clean[r * n + i]);
      }
    }
  }
}

TEST(PackWeight, FusesPartsAcrossPanels) {
  TestStream stream(2);
  const int64_t k = 64;
  const auto a = test::random_weight(DType::kQ8_0, 21, k, 1),
             b = test::random_weight(DType::kQ8_0, 7, k, 2),
             c = test::random_weight(DType::kQ8_0, 30, k, 3);
  test::RandomWeight joined{58, k, a.bytes, {}};
  joined.bytes.insert(joined.bytes.end(), b.bytes.begin(), b.bytes.end());
  joined.bytes.insert(joined.bytes.end(), c.bytes.begin(), c.bytes.end());
  joined.view = {joined.bytes.data(), DType::kQ8_0, {58, k}};
  const auto fused =
      pack_weight({a.view, b.view, c.view}, DType::kF32, stream.device(), stream.stream());
  const auto whole = pack_weight({joined.view}, DType::kF32, stream.device(), stream.stream());
  ASSERT_TRUE(fused.ok() && whole.ok());
  EXPECT_EQ(fused->n, 58);
  ASSERT_EQ(fused->bytes(), whole->bytes());
  EXPECT_EQ(0, std::memcmp(fused->data.data(), whole->data.data(), whole->bytes()));
}

TEST(PackWeight, TakesAboutTheSpaceOfTheFile) {
  TestStream stream(2);
  for (DType dtype : test::kWeightTypes) {
    const auto raw = test::random_weight(dtype, 64, 512, 1);
    const auto packed = pack_weight({raw.view}, DType::kF32, stream.device(), stream.stream());
    ASSERT_TRUE(packed.ok());
    EXPECT_LE(packed->bytes(), raw.bytes.size() * 103 / 100) << tensor::dtype_name(dtype);
  }
}

TEST(PackWeight, SaysWhatIsWrong) {
  TestStream stream(1);
  const auto pack = [&](std::vector<tensor::TensorView> parts, DType act = DType::kF32) {
    return pack_weight(parts, act, stream.device(), stream.stream()).status();
  };
  const std::vector<uint8_t> bytes(1 << 16);
  const auto view = [&](DType dtype, tensor::Shape shape) {
    return tensor::TensorView{bytes.data(), dtype, shape};
  };
  EXPECT_EQ(pack({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(pack({view(DType::kI32, {4, 32})}).code(), Code::kInvalidArgument);
  EXPECT_EQ(pack({view(DType::kQ4_1, {4, 48})}).code(), Code::kInvalidArgument);
  EXPECT_EQ(pack({view(DType::kQ4_K, {4, 32})}).code(), Code::kInvalidArgument);
  EXPECT_EQ(pack({view(DType::kF32, {32})}).code(), Code::kInvalidArgument);
  EXPECT_EQ(pack({view(DType::kF32, {0, 32})}).code(), Code::kInvalidArgument);
  EXPECT_EQ(pack({view(DType::kF32, {4, 32})}, DType::kF16).code(), Code::kInvalidArgument);
  EXPECT_EQ(pack({view(DType::kF32, {1, int64_t{1} << 20})}).code(), Code::kUnsupported);
  if (stream.device().info().isa < CpuIsa::kAvx512Bf16) {
    EXPECT_EQ(pack({view(DType::kF32, {4, 32})}, DType::kBF16).code(), Code::kUnsupported);
  }
  const Status mixed = pack({view(DType::kF32, {4, 32}), view(DType::kF32, {4, 64})});
  EXPECT_EQ(mixed.code(), Code::kInvalidArgument);
  EXPECT_NE(mixed.message().find("part 1"), std::string::npos) << mixed.message();
}

}  // namespace
}  // namespace attune::ops
