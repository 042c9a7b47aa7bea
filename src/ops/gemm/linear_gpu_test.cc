// The products on a GPU against float64 on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>

#include "ops/cuda_kernels.h"
#include "ops/gemm/cuda/batch.h"
#include "ops/gemm/cuda/context.h"
#include "ops/gemm/cuda/rows.h"
#include "ops/gemm/gemm_test_util.h"
#include "ops/test_stream.h"

namespace attune::ops {
namespace {

using test::DType;

constexpr float kPoison = 12345.0f;
constexpr int64_t kGuard = 64;  // elements before and behind y

struct How {
  bool bias = false, accumulate = false, y_bf16 = false, deterministic = false;
  int64_t pad = 0;  // of the rows of x and y
};
struct Case {
  DType dtype;
  int64_t n, k, m;
  How how = {};
};

std::string describe(const Case& c) {
  return std::string(tensor::dtype_name(c.dtype)) + " n=" + std::to_string(c.n) +
         " k=" + std::to_string(c.k) + " m=" + std::to_string(c.m) +
         " pad=" + std::to_string(c.how.pad) + (c.how.bias ? " bias" : "") +
         (c.how.accumulate ? " accumulate" : "") + (c.how.y_bf16 ? " to bfloat16" : "") +
         (c.how.deterministic ? " deterministic" : "");
}

std::vector<uint16_t> to_bf16(const std::vector<float>& v) {
  std::vector<uint16_t> out;
  for (float f : v) out.push_back(tensor::f32_to_bf16(f));
  return out;
}

std::vector<float> rounded(std::vector<float> v) {
  for (float& f : v) f = tensor::bf16_to_f32(tensor::f32_to_bf16(f));
  return v;
}

class LinearGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* places = std::getenv("ATTUNE_CUDA_LIBRARIES");
    auto made = device::create_cuda_device(0, places ? places : "");
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    device_ = std::move(*made);
    stream_ = device_->create_stream();
  }

  device::Buffer upload(const void* data, int64_t bytes) {
    auto buffer = device_->allocate(bytes, "a test");
    EXPECT_TRUE(buffer.ok()) << buffer.status().to_string();
    if (!buffer.ok()) std::abort();
    stream_->copy(buffer->data(), data, bytes);
    stream_->synchronize();
    return std::move(*buffer);
  }
  template <typename T>
  device::Buffer upload(const std::vector<T>& v) {
    return upload(v.data(), static_cast<int64_t>(v.size() * sizeof(T)));
  }
  template <typename T>
  std::vector<T> download(const device::Buffer& buffer) {
    std::vector<T> v(static_cast<size_t>(buffer.bytes()) / sizeof(T));
    stream_->copy(v.data(), buffer.data(), buffer.bytes());
    stream_->synchronize();
    return v;
  }
  PackedWeight pack(const test::RandomWeight& raw, DType act) {
    auto packed = cuda::pack_weight({raw.view}, act, *device_, *stream_);
    EXPECT_TRUE(packed.ok()) << packed.status().to_string();
    if (!packed.ok()) std::abort();
    return std::move(*packed);
  }

  // y [m, ldy] of one call, from `y` as it was; what surrounds it must stay.
  std::vector<float> call(const Case& c, const PackedWeight& w, const std::vector<float>& x,
                          const std::vector<float>& y, const std::vector<float>& bias) {
    std::vector<float> guarded(kGuard, kPoison);
    guarded.insert(guarded.end(), y.begin(), y.end());
    guarded.insert(guarded.end(), kGuard, kPoison);
    const bool f32 = w.act == DType::kF32;
    const device::Buffer on_x = f32 ? upload(x) : upload(to_bf16(x));
    const device::Buffer on_y = c.how.y_bf16 ? upload(to_bf16(guarded)) : upload(guarded);
    const device::Buffer on_bias = upload(bias);
    const LinearParams p{.x = on_x.data(),
                         .x_dtype = w.act,
                         .ldx = c.k + c.how.pad,
                         .m = static_cast<int32_t>(c.m),
                         .weight = &w,
                         .bias = c.how.bias ? on_bias.as<float>() : nullptr,
                         .y = on_y.as<char>() + kGuard * (c.how.y_bf16 ? 2 : 4),
                         .y_dtype = c.how.y_bf16 ? DType::kBF16 : DType::kF32,
                         .ldy = c.n + c.how.pad,
                         .accumulate = c.how.accumulate,
                         .deterministic = c.how.deterministic};
    stream_->launch([&] { cuda::linear(p, *stream_); });
    stream_->synchronize();
    EXPECT_TRUE(stream_->status().ok()) << stream_->status().to_string();
    std::vector<float> out;
    if (c.how.y_bf16) {
      for (uint16_t v : download<uint16_t>(on_y)) out.push_back(tensor::bf16_to_f32(v));
    } else {
      out = download<float>(on_y);
    }
    const float poison = c.how.y_bf16 ? tensor::bf16_to_f32(tensor::f32_to_bf16(kPoison)) : kPoison;
    for (int64_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(out[i], poison) << "before y";
      EXPECT_EQ(out[out.size() - 1 - i], poison) << "behind y";
    }
    return {out.begin() + kGuard, out.end() - kGuard};
  }

  void check(const Case& c, DType act = DType::kBF16) {
    SCOPED_TRACE(describe(c));
    if (HasFailure()) return;  // one case's figures are enough
    const auto raw = test::random_weight(c.dtype, c.n, c.k, static_cast<uint32_t>(1 + c.n + c.k));
    const PackedWeight packed = pack(raw, act);
    const bool quantised = tensor::dtype_info(c.dtype).quantized;
    std::vector<float> w = test::dequantized(raw);
    if (act == DType::kBF16 && !quantised) w = rounded(std::move(w));
    const int64_t ldx = c.k + c.how.pad, ldy = c.n + c.how.pad;
    auto x = test::random_floats(c.m * ldx, 2);
    if (act == DType::kBF16) x = rounded(std::move(x));
    for (int64_t r = 0; r < c.m; ++r)  // what lies behind a row must not matter
      for (int64_t i = c.k; i < ldx; ++i) x[r * ldx + i] = std::numeric_limits<float>::quiet_NaN();
    const auto bias = test::random_floats(c.n, 3);
    std::vector<float> y(c.m * ldy, kPoison);
    for (int64_t r = 0; r < c.m; ++r)
      for (int64_t i = 0; i < c.n; ++i)
        y[r * ldy + i] = c.how.accumulate ? 0.25f * static_cast<float>(i % 7)
                                          : std::numeric_limits<float>::quiet_NaN();
    const auto out = call(c, packed, x, y, bias);
    // Codes that pass through bfloat16 (many rows) are rounded there, and so are scales in packing.
    const double tolerance = !quantised ? 4e-7 * std::sqrt(double(c.k)) + 1e-6 : 2e-3;
    double worst = 0;
    for (int64_t r = 0; r < c.m; ++r) {
      for (int64_t i = 0; i < c.n; ++i) {
        double want = c.how.accumulate ? y[r * ldy + i] : 0.0, size = std::abs(want);
        if (c.how.bias) want += bias[i], size += std::abs(bias[i]);
        for (int64_t j = 0; j < c.k; ++j) {
          const double term = double(x[r * ldx + j]) * w[i * c.k + j];
          want += term;
          size += std::abs(term);
        }
        // A bias is added to what was rounded before.
        const double rounded_twice = c.how.bias ? std::abs(want) + std::abs(bias[i]) : 0;
        const double rounding = c.how.y_bf16 ? (std::abs(want) + rounded_twice) * 0x1.02p-8 : 0;
        const double error = std::abs(out[r * ldy + i] - want);
        ASSERT_LE(error, tolerance * (size + 1e-3) + rounding)
            << "row " << r << " output " << i << ": " << out[r * ldy + i] << ", want " << want;
        worst = std::max(worst, error / (size + 1e-3));
      }
      for (int64_t i = c.n; i < ldy; ++i)
        ASSERT_EQ(out[r * ldy + i],
                  c.how.y_bf16 ? tensor::bf16_to_f32(tensor::f32_to_bf16(kPoison)) : kPoison);
    }
    if (c.m == 3)
      std::printf("%s: worst error %.2g of the terms' sum\n", describe(c).c_str(), worst);
  }

  // Rows and columns of x and y side by side.
  void check_heads(DType dtype, int64_t n, int64_t k, int32_t m, int64_t heads) {
    const int64_t ldx = heads * k + 8, ldy = heads * (n + 1) + 3;
    const auto x = rounded(test::random_floats(m * ldx, 12));
    const device::Buffer on_x = upload(to_bf16(x)), y = upload(std::vector<float>(m * ldy, 1.0f));
    std::vector<PackedWeight> weights;
    std::vector<std::vector<float>> raw;
    for (int64_t h = 0; h < 5; ++h) {
      const auto w = test::random_weight(dtype, n, k, static_cast<uint32_t>(h));
      weights.push_back(pack(w, DType::kBF16));
      raw.push_back(test::dequantized(w));
    }
    std::vector<LinearParams> items;
    for (int64_t h = 0; h < heads; ++h)
      items.push_back({.x = on_x.as<uint16_t>() + h * k,
                       .x_dtype = DType::kBF16,
                       .ldx = ldx,
                       .m = m,
                       .weight = &weights[h % 5],
                       .y = y.as<float>() + h * (n + 1),
                       .ldy = ldy,
                       .accumulate = true});
    stream_->launch(
        [&] { cuda::linear_group(items.data(), static_cast<int32_t>(heads), *stream_); });
    const auto out = download<float>(y);
    ASSERT_TRUE(stream_->status().ok()) << stream_->status().to_string();
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        ASSERT_EQ(out[r * ldy + h * (n + 1) + n], 1.0f);
        for (int64_t i = 0; i < n; ++i) {
          double want = 1, size = 1;
          for (int64_t j = 0; j < k; ++j) {
            const double term = double(x[r * ldx + h * k + j]) * raw[h % 5][i * k + j];
            want += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(out[r * ldy + h * (n + 1) + i], want, 2e-3 * size)
              << tensor::dtype_name(dtype) << " row " << r << " head " << h << " output " << i;
        }
      }
    }
  }

  // The numbers of rows only the device knows.
  void check_experts(DType dtype, int64_t n, int64_t k,
                     const std::vector<std::vector<int32_t>>& sizes) {
    std::vector<PackedWeight> weights;
    std::vector<std::vector<float>> raw;
    std::vector<const PackedWeight*> places;
    weights.reserve(7);
    for (uint32_t e = 0; e < 7; ++e) {
      const auto w = test::random_weight(dtype, n, k, 20 + e);
      weights.push_back(pack(w, DType::kBF16));
      places.push_back(&weights.back());
      raw.push_back(test::dequantized(w));
    }
    auto gathered = gather_experts(places, *device_, *stream_);
    ASSERT_TRUE(gathered.ok()) << gathered.status().to_string();
    for (const auto& size : sizes) {
      std::vector<int32_t> offsets = {0};
      for (int32_t s : size) offsets.push_back(offsets.back() + s);
      const int32_t rows = offsets.back();
      const auto x = rounded(test::random_floats(rows * k, 30));
      const device::Buffer on_x = upload(to_bf16(x)), on_offsets = upload(offsets);
      const device::Buffer y = upload(std::vector<float>((rows + 1) * n, kPoison));
      stream_->launch([&] {
        cuda::expert_linear({.x = on_x.data(),
                             .x_dtype = DType::kBF16,
                             .ldx = k,
                             .rows = rows,
                             .offsets = on_offsets.as<int32_t>(),
                             .weights = &*gathered,
                             .y = y.data(),
                             .y_dtype = DType::kF32,
                             .ldy = n},
                            *stream_);
      });
      const auto out = download<float>(y);
      ASSERT_TRUE(stream_->status().ok()) << stream_->status().to_string();
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out[rows * n + i], kPoison);
      for (size_t e = 0; e < 7; ++e) {
        for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
          for (int64_t i = 0; i < n; ++i) {
            double want = 0, sum = 0.01;
            for (int64_t j = 0; j < k; ++j) {
              const double term = double(x[r * k + j]) * raw[e][i * k + j];
              want += term;
              sum += std::abs(term);
            }
            ASSERT_NEAR(out[r * n + i], want, 2e-3 * sum)
                << tensor::dtype_name(dtype) << " expert " << e << " row " << r;
          }
        }
      }
    }
  }

  // The kernel for a decode batch by every size of its clusters, twice, with the same bits; rows
  // that lie apart.
  void check_batch(int32_t n, int32_t k, int32_t m) {
    constexpr int64_t kPad = 8;
    const auto raw = test::random_weight(DType::kBF16, n, k, 7);
    const PackedWeight packed = pack(raw, DType::kBF16);
    const gemm::BatchRoom& room = packed.cuda->batch_room();
    if (!room) GTEST_SKIP() << "does not declare products of a decode batch";
    const std::vector<float> w = rounded(test::dequantized(raw));
    const int64_t ldx = k + kPad, ldy = n + kPad;
    const auto x = rounded(test::random_floats(m * ldx, 8));
    const device::Buffer on_x = upload(to_bf16(x));
    std::vector<double> want(m * ldy), size(want.size());
    for (int32_t r = 0; r < m; ++r)
      for (int32_t i = 0; i < n; ++i)
        for (int32_t j = 0; j < k; ++j) {
          const double term = double(x[r * ldx + j]) * w[int64_t{i} * k + j];
          want[r * ldy + i] += term;
          size[r * ldy + i] += std::abs(term);
        }
    const float poison = tensor::bf16_to_f32(tensor::f32_to_bf16(kPoison));
    for (const bool y_bf16 : {false, true}) {
      // Added to; or NaN, to be written over. Rows' ends stay.
      std::vector<float> before(want.size(), poison);
      for (int32_t r = 0; r < m; ++r)
        std::fill_n(before.begin() + r * ldy, n, y_bf16 ? std::nanf("") : 0.5f);
      for (const int32_t cluster : {1, 2, 4, 8}) {
        SCOPED_TRACE(describe({DType::kBF16, n, k, m, {.y_bf16 = y_bf16}}) +
                     " cluster=" + std::to_string(cluster));
        std::vector<float> first;
        for (int run = 0; run < 2; ++run) {
          const device::Buffer y = y_bf16 ? upload(to_bf16(before)) : upload(before);
          bool served = false;
          stream_->launch([&] {
            served = gemm::batch_linear({.w = packed.data.data(),
                                         .n = n,
                                         .k = k,
                                         .m = m,
                                         .x = on_x.data(),
                                         .ldx = ldx,
                                         .y = y.data(),
                                         .ldy = ldy,
                                         .y_bf16 = y_bf16,
                                         .accumulate = !y_bf16},
                                        {.cluster = cluster, .spread = m % 2 == 0}, room, *stream_);
          });
          std::vector<float> got;
          if (y_bf16) {
            for (uint16_t v : download<uint16_t>(y)) got.push_back(tensor::bf16_to_f32(v));
          } else {
            got = download<float>(y);
          }
          ASSERT_TRUE(stream_->status().ok()) << stream_->status().to_string();
          ASSERT_TRUE(served || cluster > 1);
          if (!served) break;
          for (int32_t r = 0; r < m; ++r) {
            for (int64_t i = r * ldy; i < r * ldy + n; ++i) {
              const double wanted = want[i] + (y_bf16 ? 0 : 0.5);
              const double rounding = y_bf16 ? std::abs(wanted) * 0x1.02p-8 : 0;
              ASSERT_LE(std::abs(got[i] - wanted),
                        4e-7 * std::sqrt(double(k)) * (size[i] + 0.5) + rounding)
                  << "row " << r << " output " << i - r * ldy;
            }
            for (int64_t i = r * ldy + n; i < (r + 1) * ldy; ++i) ASSERT_EQ(got[i], poison);
          }
          if (run == 0) first = got;
          ASSERT_EQ(got, first);
        }
      }
    }
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
};

TEST_F(LinearGpuTest, EveryTypeAndNumberOfRows) {
  for (DType dtype : test::kWeightTypes) {
    const int64_t k = tensor::dtype_info(dtype).block_elems == 256 ? 768 : 608;
    for (int64_t m : {1, 2, 3, 5, 8, 9, 16, 17, 63, 100, 300}) {
      check({dtype, 203, k, m});
      check({dtype, 203, k, m, {.bias = true, .accumulate = true, .pad = 8}});
    }
  }
}

TEST_F(LinearGpuTest, OddShapes) {
  for (DType dtype : {DType::kBF16, DType::kQ4_0, DType::kQ8_0, DType::kQ5_1}) {
    for (int64_t n : {1, 7, 16, 33})
      for (int64_t k : {32, 64, 96, 544})
        for (int64_t m : {1, 6, 11, 20, 70}) check({dtype, n, k, m, {.pad = n % 2 ? 3 : 16}});
    for (int64_t m : {1, 13, 50, 90}) {
      check({dtype, 130, 576, m, {.bias = true, .y_bf16 = true, .pad = 8}});
      check({dtype, 130, 576, m, {.y_bf16 = true, .pad = 1}});
    }
  }
}

// Float weights of any multiple of 8 inputs: every length of a last block. NaN lies behind the rows
// of x, and other rows behind those of the weight.
TEST_F(LinearGpuTest, RunsOfEightInputs) {
  for (const int64_t k : {8, 16, 24, 40, 48, 56, 72, 104, 120, 136, 600, 1096}) {
    for (const int64_t m : {1, 7, 12, 16, 40, 300}) {
      check({DType::kBF16, 51, k, m, {.pad = 8}});
      check({DType::kF16, 16, k, m, {.bias = true, .accumulate = true, .pad = 3}});
      check({DType::kBF16, 33, k, m, {.deterministic = true}});
    }
  }
  check({DType::kBF16, 70, 32768 + 40, 16});
}

// Shares of more than one tile and rings that wrap; x that does not fit at once.
TEST_F(LinearGpuTest, LargeShapes) {
  for (DType dtype : {DType::kBF16, DType::kQ4_K, DType::kQ6_K, DType::kQ8_0}) {
    check({dtype, 9000, 1024, 1});
    check({dtype, 4999, 1280, 16, {.accumulate = true}});
    for (int64_t m : {1, 4, 9, 16}) check({dtype, 140, 14336, m, {.accumulate = true}});
    check({dtype, 9000, 14336, 1, {.bias = true}});
  }
  // Tiles that are some warp's alone, and others that warps share.
  for (int64_t m : {1, 3}) check({DType::kQ4_K, 40000, 768, m, {.bias = true, .accumulate = true}});
  check({DType::kBF16, 70, 32768 + 32, 16});
}

// Odd k, and rows, and tiles.
TEST_F(LinearGpuTest, BatchesByEveryCluster) {
  for (const auto& [n, k] : {std::pair(203, 2056), std::pair(1030, 1096), std::pair(5000, 520)})
    for (const int32_t m : {1, 31, 64, 65, 128}) check_batch(n, k, m);
}

// Nothing is read ahead of the weights that the kernel before makes.
TEST_F(LinearGpuTest, BatchOfWeightsJustMade) {
  constexpr int32_t n = 2048, k = 2048, m = 80;
  const PackedWeight q8 = pack(test::random_weight(DType::kQ8_0, n, k, 7), DType::kBF16);
  if (!q8.cuda->batch_room()) GTEST_SKIP() << "does not declare products of a decode batch";
  const device::Buffer x = upload(to_bf16(test::random_floats(m * k, 8))),
                       w = upload(std::vector<uint16_t>(n * k)),
                       y = upload(std::vector<float>(m * n));
  const gemm::BatchParams p{w.data(), n, k, m, x.data(), k, y.data(), n, false, false, true};
  for (const int32_t of : {1, 2, 4, 8}) {
    const auto multiply = [&] { gemm::batch_linear(p, {of}, q8.cuda->batch_room(), *stream_); };
    stream_->fill(w.data(), 0xff, w.bytes());  // NaN
    stream_->launch([&] {
      gemm::dequantize({q8.data.as<uint8_t>(), k, 0, n, w.data()}, gemm::CudaLayout::kCode8,
                       *stream_);
      multiply();
    });
    const auto got = download<float>(y);
    stream_->launch(multiply);
    EXPECT_EQ(got, download<float>(y)) << of;
  }
}

TEST_F(LinearGpuTest, Float32) {
  for (int64_t m : {1, 5, 16, 17, 130}) {
    for (bool deterministic : {false, true}) {
      check({DType::kF32, 61, 2048, m, {.deterministic = deterministic}}, DType::kF32);
      check({DType::kBF16,
             64,
             100,
             m,
             {.bias = true, .accumulate = true, .deterministic = deterministic, .pad = 3}},
            DType::kF32);
    }
  }
}

TEST_F(LinearGpuTest, PartsLieBelowOneAnother) {
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kQ4_1}) {
    const auto whole = test::random_weight(dtype, 75, 256, 4);
    const int64_t row = tensor::dtype_bytes(dtype, 256);
    std::vector<tensor::TensorView> parts;
    int64_t first = 0;
    for (int64_t n : {40, 7, 28}) {
      parts.push_back({whole.bytes.data() + first * row, dtype, {n, 256}});
      first += n;
    }
    auto packed = cuda::pack_weight(parts, DType::kBF16, *device_, *stream_);
    ASSERT_TRUE(packed.ok()) << packed.status().to_string();
    EXPECT_EQ(download<uint8_t>(packed->data), download<uint8_t>(pack(whole, DType::kBF16).data));
  }
}

// The bits of row 0 alone, and of every row among others.
TEST_F(LinearGpuTest, DeterministicRowsDoNotDependOnTheOthers) {
  for (const auto& [dtype, act] :
       {std::pair(DType::kBF16, DType::kBF16), std::pair(DType::kQ4_K, DType::kBF16),
        std::pair(DType::kQ8_0, DType::kBF16), std::pair(DType::kF32, DType::kF32)}) {
    for (const auto& [n, k] : {std::pair(576, 1536), std::pair(4096, 4096), std::pair(203, 512)}) {
      for (bool y_bf16 : {false, true}) {
        const auto raw = test::random_weight(dtype, n, k, 5);
        const PackedWeight packed = pack(raw, act);
        auto x = test::random_floats(1500 * k, 6);
        const std::vector<float> none;
        Case c{dtype, n, k, 1500, {.y_bf16 = y_bf16, .deterministic = true}};
        const auto all = call(c, packed, x, std::vector<float>(c.m * n), std::vector<float>(n));
        for (int64_t m : {1, 2, 7, 16, 17, 64, 100, 257, 1024}) {
          c.m = m;
          const auto some = call(c, packed, x, std::vector<float>(m * n), std::vector<float>(n));
          int64_t differ = 0;
          for (int64_t i = 0; i < m * n; ++i) differ += some[i] != all[i];
          EXPECT_EQ(differ, 0) << describe(c) << " of " << m * n;
        }
      }
    }
  }
}

// The same bits with programmatic dependent launch and without, alone and in a graph.
TEST_F(LinearGpuTest, ChainsInGraphs) {
  const int64_t n = 1536;
  for (int64_t m : {1, 8, 16, 40}) {
    const auto raw = test::random_weight(DType::kBF16, n, n, 7);
    const PackedWeight w = pack(raw, DType::kBF16);
    const device::Buffer x = upload(to_bf16(test::random_floats(m * n, 8)));
    const device::Buffer y = upload(std::vector<uint16_t>(m * n));
    const auto chain = [&] {
      for (int i = 0; i < 20; ++i)
        cuda::linear({.x = (i % 2 ? y : x).data(),
                      .x_dtype = DType::kBF16,
                      .ldx = n,
                      .m = static_cast<int32_t>(m),
                      .weight = &w,
                      .y = (i % 2 ? x : y).data(),
                      .y_dtype = DType::kBF16,
                      .ldy = n},
                     *stream_);
    };
    const auto start = download<uint16_t>(x);
    std::vector<std::vector<uint16_t>> results;
    for (bool pdl : {false, true}) {
      stream_->set_pdl(pdl);
      for (bool graph : {false, true}) {
        stream_->copy(x.data(), start.data(), x.bytes());
        stream_->synchronize();
        if (graph) {
          auto captured = stream_->capture("a chain", chain);
          ASSERT_TRUE(captured.ok()) << captured.status().to_string();
          (*captured)->launch(*stream_);
          stream_->synchronize();
        } else {
          stream_->launch(chain);
        }
        results.push_back(download<uint16_t>(x));
        ASSERT_TRUE(stream_->status().ok()) << stream_->status().to_string();
        EXPECT_EQ(results.back(), results.front()) << "m=" << m << " pdl " << pdl << graph;
      }
    }
    double size = 0;
    for (uint16_t v : results[0]) size += std::abs(tensor::bf16_to_f32(v));
    EXPECT_TRUE(size > 0 && std::isfinite(size));
  }
}

TEST_F(LinearGpuTest, GroupsAndEmptyOnes) {
  const auto raw = test::random_weight(DType::kBF16, 96, 128, 9);
  const PackedWeight w = pack(raw, DType::kBF16);
  const auto x = rounded(test::random_floats(4 * 128, 10));
  const device::Buffer on_x = upload(to_bf16(x)), y = upload(std::vector<float>(4 * 96));
  std::vector<LinearParams> items;
  for (int64_t row : {0, 1, 3})
    items.push_back({.x = on_x.as<uint16_t>() + row * 128,
                     .x_dtype = DType::kBF16,
                     .ldx = 128,
                     .m = row == 1 ? 2 : 1,
                     .weight = &w,
                     .y = y.as<float>() + row * 96,
                     .ldy = 96});
  items.push_back(items[0]);
  items.back().m = 0;
  stream_->launch([&] { cuda::linear_group(items.data(), 4, *stream_); });
  const auto out = download<float>(y);
  const auto weights = test::dequantized(raw);
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t i = 0; i < 96; ++i) {
      double want = 0;
      for (int64_t j = 0; j < 128; ++j) want += double(x[r * 128 + j]) * weights[i * 128 + j];
      ASSERT_NEAR(out[r * 96 + i], want, 1e-4);
    }
  }
}

// Heads, more of them than a launch takes.
TEST_F(LinearGpuTest, ManyHeads) {
  for (DType dtype : {DType::kBF16, DType::kQ4_0, DType::kQ8_0, DType::kQ5_K, DType::kQ6_K}) {
    check_heads(dtype, 40, 256, 3, 300);
    check_heads(dtype, 200, 512, 150, 5);
  }
  check_heads(DType::kBF16, 40, 24, 3, 300);
}

// Experts with no rows, one, and more than a tile.
TEST_F(LinearGpuTest, Experts) {
  const std::vector<std::vector<int32_t>> sizes = {
      {0, 1, 0, 2, 17, 0, 5}, {300, 0, 1, 129, 64, 3, 128}, {0, 0, 0, 0, 0, 0, 1}};
  for (DType dtype : {DType::kBF16, DType::kQ4_K, DType::kQ5_0, DType::kQ6_K}) {
    check_experts(dtype, 96, 256, sizes);
    check_experts(dtype, 271, 768, sizes);
  }
  check_experts(DType::kBF16, 96, 40, sizes);
}

// Every kernel and layout at a size that compute-sanitizer's tools bear.
class LinearSanitized : public LinearGpuTest {};

TEST_F(LinearSanitized, EveryWay) {
  for (DType dtype : {DType::kBF16, DType::kQ4_1, DType::kQ8_0, DType::kQ5_1, DType::kQ6_K}) {
    for (const int64_t m : {2, 11, 20, 70}) check({dtype, 40, 256, m, {.bias = true, .pad = 8}});
    check_heads(dtype, 24, 256, 3, 2);
    check_experts(dtype, 24, 256, {{0, 2, 1, 0, 0, 3, 0}, {40, 0, 0, 70, 1, 0, 0}});
  }
  check({DType::kBF16, 40, 104, 5, {.y_bf16 = true, .pad = 1}});
  for (const int32_t m : {3, 70}) check_batch(70, 520, m);
  check({DType::kBF16, 40, 256, 20, {.deterministic = true}});
  for (const int64_t m : {2, 20})
    check({DType::kF32, 21, 40, m, {.deterministic = m == 2}}, DType::kF32);
}

TEST_F(LinearGpuTest, RefusesWhatItCannotServe) {
  const auto raw = test::random_weight(DType::kBF16, 8, 36, 11);
  const auto odd = cuda::pack_weight({raw.view}, DType::kBF16, *device_, *stream_);
  EXPECT_EQ(odd.status().code(), Code::kUnsupported) << odd.status().to_string();
  EXPECT_FALSE(cuda::pack_weight({}, DType::kBF16, *device_, *stream_).ok());
}

}  // namespace
}  // namespace attune::ops
