#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/ops.h"
#include "ops/test_stream.h"
#include "tensor/half.h"

namespace attune::ops {
namespace {

using test::random_floats;

struct Case {
  RopeStyle style;
  int rot_dim;
  bool norm;
  DType kv;
  bool head_major;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << (c.style == RopeStyle::kHalf ? "halves" : "interleaved") << " of " << c.rot_dim << ", "
       << (c.norm ? "normed, " : "") << tensor::dtype_name(c.kv)
       << (c.head_major ? ", head-major" : ", token-major");
}

class RopeAppend : public ::testing::TestWithParam<Case> {};

constexpr int kTokens = 11, kQ = 6, kKv = 2, kDim = 20, kPage = 4, kSlots = 8;

// The plain formulas in double: what token t's head at `x` becomes.
std::vector<double> rope_head(const float* x, const float* norm, const Case& c, double position,
                              const std::vector<float>& inv_freq) {
  std::vector<double> y(x, x + kDim);
  if (norm) {
    double sum = 0;
    for (double v : y) sum += v * v;
    for (int i = 0; i < kDim; ++i) y[i] *= norm[i] / std::sqrt(sum / kDim + 1e-6);
  }
  for (int i = 0; i < c.rot_dim / 2; ++i) {
    const int a = c.style == RopeStyle::kHalf ? i : 2 * i;
    const int b = c.style == RopeStyle::kHalf ? i + c.rot_dim / 2 : 2 * i + 1;
    const double angle = position * inv_freq[i], ya = y[a], yb = y[b];
    y[a] = ya * std::cos(angle) - yb * std::sin(angle);
    y[b] = yb * std::cos(angle) + ya * std::sin(angle);
  }
  return y;
}

double read(const char* at, DType dtype, int i) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(at)[i];
  if (dtype == DType::kF8E4M3) return tensor::f8e4m3_to_f32(static_cast<uint8_t>(at[i]));
  if (dtype == DType::kF8E5M2) return tensor::f8e5m2_to_f32(static_cast<uint8_t>(at[i]));
  const uint16_t h = reinterpret_cast<const uint16_t*>(at)[i];
  return dtype == DType::kBF16 ? tensor::bf16_to_f32(h) : tensor::f16_to_f32(h);
}

TEST_P(RopeAppend, QGoesToItsBufferAndKvOnlyToTheirSlots) {
  const Case c = GetParam();
  test::TestStream s(2);
  const OpTable& ops = cpu_ops(device::CpuIsa::kAvx2);
  const int half = c.rot_dim / 2, width = (kQ + 2 * kKv) * kDim, ld = width + 3;
  std::vector<float> inv_freq(half), cos(kTokens * half), sin(kTokens * half);
  for (int i = 0; i < half; ++i) inv_freq[i] = float(std::pow(10000.0, -2.0 * i / c.rot_dim));
  std::vector<int32_t> positions(kTokens);
  for (int t = 0; t < kTokens; ++t) positions[t] = 5 + 13 * t;
  s.run(ops.rope_table, RopeTableParams{positions.data(), kTokens, inv_freq.data(), c.rot_dim, 1.0f,
                                        cos.data(), sin.data()});

  const auto qkv = random_floats(kTokens * ld, 3);
  const auto q_norm = random_floats(kDim, 4), k_norm = random_floats(kDim, 5);
  std::vector<int64_t> slots(kTokens);
  for (int t = 0; t < kTokens; ++t) slots[t] = (t * 7 + 3) % (kSlots * kPage);  // scattered
  slots[4] = -1;
  const int64_t e = tensor::dtype_bytes(c.kv, 1), piece = 2 * kKv * kPage * kDim * e;
  std::vector<char> pool(kSlots * piece, char(0x5a));
  const std::vector<char> untouched = pool;
  std::vector<float> q(kTokens * kQ * kDim);
  RopeAppendParams p{};
  p.qkv = qkv.data();
  p.ldqkv = ld;
  p.tokens = kTokens;
  p.q_heads = kQ;
  p.kv_heads = kKv;
  p.head_dim = kDim;
  p.rot_dim = c.rot_dim;
  p.style = c.style;
  p.cos = cos.data();
  p.sin = sin.data();
  p.q_norm = c.norm ? q_norm.data() : nullptr;
  p.k_norm = c.norm ? k_norm.data() : nullptr;
  p.norm_eps = 1e-6f;
  p.q_out = q.data();
  p.slot_mapping = slots.data();
  p.kv_base = pool.data();
  p.kv_dtype = c.kv;
  p.page_stride = piece;
  p.head_stride = (c.head_major ? kPage : 1) * kDim * e;
  p.token_stride = (c.head_major ? 1 : kKv) * kDim * e;
  p.v_offset = piece / 2;
  p.page_size = kPage;
  const bool scaled = e == 1;  // bug A-23: k's scale for k, v's for v
  if (scaled) p.k_scale = 0.5f, p.v_scale = 3.7f;
  s.run(ops.rope_append, p);

  const double tol = c.kv == DType::kF32    ? 2e-5
                     : c.kv == DType::kF16  ? 2e-3
                     : c.kv == DType::kBF16 ? 2e-2
                                            : 0;
  const auto bound = [&](double want) {
    return scaled ? std::abs(want) / (c.kv == DType::kF8E4M3 ? 15 : 7) + 0x1p-9 : tol;
  };
  std::vector<char> named(pool.size(), 0);  // bytes that some token owns
  for (int t = 0; t < kTokens; ++t) {
    const float* x = qkv.data() + t * ld;
    for (int h = 0; h < kQ; ++h) {
      const auto want = rope_head(x + h * kDim, p.q_norm, c, positions[t], inv_freq);
      for (int i = 0; i < kDim; ++i)
        ASSERT_NEAR(q[(t * kQ + h) * kDim + i], want[i], 2e-5) << t << " " << h << " " << i;
    }
    if (slots[t] < 0) continue;
    for (int h = 0; h < kKv; ++h) {
      const int64_t at =
          slots[t] / kPage * piece + slots[t] % kPage * p.token_stride + h * p.head_stride;
      const auto k = rope_head(x + (kQ + h) * kDim, p.k_norm, c, positions[t], inv_freq);
      for (int i = 0; i < kDim; ++i) {
        const double want_k = k[i] / p.k_scale, want_v = x[(kQ + kKv + h) * kDim + i] / p.v_scale;
        ASSERT_NEAR(read(pool.data() + at, c.kv, i), want_k, bound(want_k))
            << t << " " << h << " " << i;
        ASSERT_NEAR(read(pool.data() + at + p.v_offset, c.kv, i), want_v, bound(want_v));
      }
      std::memset(named.data() + at, 1, kDim * e);
      std::memset(named.data() + at + p.v_offset, 1, kDim * e);
    }
  }
  // Bug A-16: an append touches the slots of its map and nothing else.
  for (size_t i = 0; i < pool.size(); ++i) {
    if (!named[i]) {
      ASSERT_EQ(pool[i], untouched[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, RopeAppend,
    ::testing::Values(Case{RopeStyle::kHalf, kDim, false, DType::kF32, true},
                      Case{RopeStyle::kHalf, 12, true, DType::kF32, false},
                      Case{RopeStyle::kInterleaved, kDim, false, DType::kBF16, true},
                      Case{RopeStyle::kInterleaved, 8, true, DType::kF16, false},
                      Case{RopeStyle::kHalf, kDim, true, DType::kF16, true},
                      Case{RopeStyle::kHalf, kDim, true, DType::kF8E4M3, true},
                      Case{RopeStyle::kInterleaved, 8, false, DType::kF8E5M2, false}));

TEST(RopeTable, AngleIsRoundedToFloat32First) {
  test::TestStream s(1);
  const float inv_freq = 0.7498942f;
  const int32_t position = 131071;
  float cos = 0, sin = 0;
  s.run(cpu_ops(device::CpuIsa::kAvx2).rope_table,
        RopeTableParams{&position, 1, &inv_freq, 2, 1.5f, &cos, &sin});
  const float angle = float(position) * inv_freq;
  EXPECT_FLOAT_EQ(cos, 1.5f * float(std::cos(double(angle))));
  EXPECT_FLOAT_EQ(sin, 1.5f * float(std::sin(double(angle))));
}

}  // namespace
}  // namespace attune::ops
