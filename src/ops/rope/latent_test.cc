#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/ops.h"
#include "ops/test_stream.h"
#include "tensor/half.h"

namespace attune::ops {
namespace {

using test::random_floats;
using test::TestStream;

constexpr int32_t kTokens = 5, kLatent = 515, kRot = 8, kPage = 4, kSlots = 3, kHeads = 3;
constexpr int32_t kRow = kLatent + kRot;

const OpTable& table() {
  return cpu_ops(device::CpuIsa::kAvx2);
}

double widen(const std::byte* p, DType dtype, int64_t i) {
  uint16_t half;
  float f;
  if (dtype == DType::kF32) {
    std::memcpy(&f, p + i * 4, 4);
    return f;
  }
  std::memcpy(&half, p + i * 2, 2);
  return dtype == DType::kBF16 ? tensor::bf16_to_f32(half) : tensor::f16_to_f32(half);
}

// A pool of poison, into which five tokens are written in a scattered order.
struct Pool {
  explicit Pool(DType type) : dtype(type), elem(tensor::dtype_bytes(type, 1)) {
    bytes.assign(static_cast<size_t>(kSlots) * kPage * kRow * elem, std::byte{0x7f});
    kv = random_floats(kTokens * (kRow + 2), 1);
    norm = random_floats(kLatent, 2);
    for (int32_t t = 0; t < kTokens; ++t) {
      for (int32_t i = 0; i < kRot / 2; ++i) {
        cos.push_back(std::cos(0.3f * t * (i + 1)));
        sin.push_back(std::sin(0.3f * t * (i + 1)));
      }
    }
  }
  void append(TestStream& stream, RopeStyle style) {
    stream.run(table().latent_append, {.kv = kv.data(),
                                       .ldkv = kRow + 2,
                                       .tokens = kTokens,
                                       .latent_dim = kLatent,
                                       .rot_dim = kRot,
                                       .style = style,
                                       .cos = cos.data(),
                                       .sin = sin.data(),
                                       .norm = norm.data(),
                                       .norm_eps = 1e-6f,
                                       .slot_mapping = slots.data(),
                                       .kv_base = bytes.data(),
                                       .kv_dtype = dtype,
                                       .page_stride = kPage * kRow * elem,
                                       .token_stride = kRow * elem,
                                       .page_size = kPage});
  }
  // Row of token t as it should be.
  std::vector<double> row(int32_t t, RopeStyle style) const {
    const float* x = kv.data() + t * (kRow + 2);
    std::vector<double> out(kRow);
    double square = 0;
    for (int32_t i = 0; i < kLatent; ++i) square += double(x[i]) * x[i];
    for (int32_t i = 0; i < kLatent; ++i)
      out[i] = x[i] / std::sqrt(square / kLatent + 1e-6) * norm[i];
    for (int32_t i = 0; i < kRot / 2; ++i) {
      const int32_t a = kLatent + (style == RopeStyle::kHalf ? i : 2 * i);
      const int32_t b = a + (style == RopeStyle::kHalf ? kRot / 2 : 1);
      const double c = cos[t * kRot / 2 + i], s = sin[t * kRot / 2 + i];
      out[a] = x[a] * c - x[b] * s;
      out[b] = x[b] * c + x[a] * s;
    }
    return out;
  }

  DType dtype;
  int64_t elem;
  std::vector<std::byte> bytes;
  std::vector<float> kv, norm, cos, sin;
  std::vector<int64_t> slots{9, 2, -1, 3, 4};
};

double tolerance(DType dtype) {
  return dtype == DType::kF32 ? 1e-5 : dtype == DType::kF16 ? 3e-3 : 2e-2;
}

// Only the rows that the mapping names are written, each to its end and no further.
TEST(BugE06, LatentRowsLeaveNeighboursUntouched) {
  TestStream stream(2);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalf}) {
      Pool pool(dtype);
      pool.append(stream, style);
      std::vector<bool> written(kSlots * kPage);
      for (int32_t t = 0; t < kTokens; ++t) {
        if (pool.slots[t] < 0) continue;
        written[pool.slots[t]] = true;
        const std::vector<double> want = pool.row(t, style);
        const std::byte* got = pool.bytes.data() + pool.slots[t] * kRow * pool.elem;
        for (int32_t i = 0; i < kRow; ++i)
          ASSERT_NEAR(widen(got, dtype, i), want[i], tolerance(dtype) * (1 + std::abs(want[i])))
              << "token " << t << ", element " << i;
      }
      for (int32_t slot = 0; slot < kSlots * kPage; ++slot)
        for (int64_t i = 0; i < kRow * pool.elem && !written[slot]; ++i)
          ASSERT_EQ(pool.bytes[slot * kRow * pool.elem + i], std::byte{0x7f});
    }
  }
}

TEST(LatentGather, RowsComeInAnyOrderAndType) {
  TestStream stream(2);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType latent_dtype : {DType::kF32, DType::kBF16}) {
      Pool pool(dtype);
      pool.append(stream, RopeStyle::kInterleaved);
      const std::vector<int64_t> positions{4, 9, -1, 2, 9};
      const int32_t rows = 5;
      std::vector<std::byte> latents(rows * kLatent * tensor::dtype_bytes(latent_dtype, 1));
      constexpr int32_t kHead = kRot + 3;
      const auto elem = static_cast<size_t>(tensor::dtype_bytes(latent_dtype, 1));
      std::vector<std::byte> rope(rows * kHeads * kHead * elem, std::byte{0x7f});
      stream.run(table().latent_gather, {.positions = positions.data(),
                                         .rows = rows,
                                         .latent_dim = kLatent,
                                         .rot_dim = kRot,
                                         .heads = kHeads,
                                         .kv_base = pool.bytes.data(),
                                         .kv_dtype = dtype,
                                         .page_stride = kPage * kRow * pool.elem,
                                         .token_stride = kRow * pool.elem,
                                         .page_size = kPage,
                                         .latents = latents.data(),
                                         .latent_dtype = latent_dtype,
                                         .rope = rope.data() + 3 * elem,
                                         .rope_dtype = latent_dtype,
                                         .rope_row_stride = kHeads * kHead,
                                         .rope_head_stride = kHead});
      for (int32_t r = 0; r < rows; ++r) {
        const auto at = [&](int32_t i) {
          return positions[r] < 0
                     ? 0.0
                     : widen(pool.bytes.data() + positions[r] * kRow * pool.elem, dtype, i);
        };
        const auto near = [&](double value) {
          return latent_dtype == dtype || latent_dtype == DType::kF32 ? 0 : 0.005 * std::abs(value);
        };
        for (int32_t i = 0; i < kLatent; ++i)
          ASSERT_NEAR(widen(latents.data(), latent_dtype, r * kLatent + i), at(i), near(at(i)));
        for (int32_t h = 0; h < kHeads; ++h) {
          const int64_t head = (r * kHeads + h) * kHead;
          for (size_t i = 0; i < 3 * elem; ++i)
            ASSERT_EQ(rope[static_cast<size_t>(head) * elem + i], std::byte{0x7f});
          for (int32_t i = 0; i < kRot; ++i)
            ASSERT_NEAR(widen(rope.data(), latent_dtype, head + 3 + i), at(kLatent + i),
                        near(at(kLatent + i)));
        }
      }
    }
  }
}

TEST(Rope, PartOfEveryHeadInPlace) {
  TestStream stream(2);
  Pool pool(DType::kF32);
  constexpr int32_t kHead = 12, kFirst = 4;
  const auto x = random_floats(kTokens * kHeads * kHead, 3);
  std::vector<float> y = x;
  stream.run(table().rope, {.x = y.data() + kFirst,
                            .ldx = kHeads * kHead,
                            .head_stride = kHead,
                            .tokens = kTokens,
                            .heads = kHeads,
                            .rot_dim = kRot,
                            .style = RopeStyle::kInterleaved,
                            .cos = pool.cos.data(),
                            .sin = pool.sin.data(),
                            .out = y.data() + kFirst,
                            .ldo = kHeads * kHead,
                            .out_head_stride = kHead});
  for (int32_t t = 0; t < kTokens; ++t) {
    for (int32_t h = 0; h < kHeads; ++h) {
      const float* a = x.data() + (t * kHeads + h) * kHead;
      const float* b = y.data() + (t * kHeads + h) * kHead;
      for (int32_t i = 0; i < kFirst; ++i) EXPECT_EQ(a[i], b[i]);
      for (int32_t i = 0; i < kRot / 2; ++i) {
        const float c = pool.cos[t * kRot / 2 + i], s = pool.sin[t * kRot / 2 + i];
        EXPECT_NEAR(b[4 + 2 * i], a[4 + 2 * i] * c - a[5 + 2 * i] * s, 1e-6);
        EXPECT_NEAR(b[5 + 2 * i], a[5 + 2 * i] * c + a[4 + 2 * i] * s, 1e-6);
      }
    }
  }
}

TEST(Cast, HeadsWithGaps) {
  TestStream stream(1);
  const auto x = random_floats(2 * 3 * 10, 4);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<std::byte> out(2 * 3 * 9 * tensor::dtype_bytes(dtype, 1));
    stream.run(table().cast, {.x = x.data(),
                              .ldx = 30,
                              .head_stride = 10,
                              .rows = 2,
                              .heads = 3,
                              .n = 9,
                              .out = out.data(),
                              .out_dtype = dtype});
    for (int i = 0; i < 54; ++i) {
      const float want = x[i / 9 * 10 + i % 9];
      const float rounded = tensor::bf16_to_f32(tensor::f32_to_bf16(want));
      EXPECT_EQ(widen(out.data(), dtype, i), dtype == DType::kF32 ? want : rounded);
    }
  }
}

}  // namespace
}  // namespace attune::ops
