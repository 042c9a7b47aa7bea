#include "ops/cuda_kernels.h"
#include "ops/gpu_test_util.h"

namespace attune::ops {
namespace {

using test::element;
using test::random_floats;

class CudaRmsNorm : public test::GpuTest {
 protected:
  void check(int32_t rows, int32_t n, int32_t gap, DType out_dtype) {
    const int64_t ldx = n + gap, ldo = n + 2 * gap;
    const auto x = random_floats(static_cast<size_t>(rows * ldx), 1 + n, 3.0f);
    const auto weight = random_floats(n, 2);
    const auto elem = tensor::dtype_bytes(out_dtype, 1);
    const size_t out_bytes = static_cast<size_t>(rows * ldo * elem);
    uint8_t* out = output<uint8_t>(out_bytes);
    run(cuda::rms_norm,
        RmsNormParams{upload(x), ldx, upload(weight), 1e-5f, rows, n, out, ldo, out_dtype});
    const auto got = download(out, out_bytes);
    for (int32_t r = 0; r < rows; ++r) {
      double square = 0;
      for (int32_t i = 0; i < n; ++i) square += double(x[r * ldx + i]) * x[r * ldx + i];
      const double inv = 1 / std::sqrt(square / n + 1e-5);
      for (int32_t i = 0; i < n; ++i) {
        const double want = x[r * ldx + i] * inv * weight[i];
        ASSERT_NEAR(element(got.data(), out_dtype, r * ldo + i), want,
                    std::abs(want) * (1.01 * test::rounding(out_dtype) + 1e-6) + 1e-12)
            << rows << " rows of " << n << ": " << r << ", " << i;
      }
      for (int64_t i = n * elem; i < ldo * elem; ++i)  // between rows
        ASSERT_EQ(got[r * ldo * elem + i], kPoison);
    }
  }
};

TEST_F(CudaRmsNorm, WidthsAndStrides) {
  for (DType out : {DType::kF32, DType::kBF16})
    for (int32_t n :
         {1, 4, 31, 64, 100, 128, 1000, 2048, 4096, 4098, 5120, 8192, 12288, 16388, 28672, 40000})
      for (int32_t gap : {0, 3, 8}) check(n > 8192 ? 2 : 5, n, gap, out);
}

TEST_F(CudaRmsNorm, ManyRowsAndNone) {
  check(3001, 512, 0, DType::kBF16);
  check(0, 64, 0, DType::kF32);
}

TEST_F(CudaRmsNorm, PicksRows) {
  const int32_t count = 9, rows = 5;
  const std::vector<int32_t> picks = {4, 0, 0, 3, 2, 4, 1, 3, 0};
  for (int32_t n : {5, 4096, 4098, 40000}) {  // every kernel
    const int64_t ldx = n + 8;
    const auto x = random_floats(static_cast<size_t>(rows * ldx), n), weight = random_floats(n, 2);
    std::vector<float> picked;
    for (int32_t pick : picks) picked.insert(picked.end(), &x[pick * ldx], &x[pick * ldx] + ldx);
    const float* w = upload(weight);
    float* want = output<float>(static_cast<size_t>(count) * n);
    run(cuda::rms_norm,
        RmsNormParams{upload(picked), ldx, w, 1e-5f, count, n, want, n, DType::kF32});
    float* got = output<float>(static_cast<size_t>(count) * n);
    run(cuda::rms_norm,
        RmsNormParams{upload(x), ldx, w, 1e-5f, count, n, got, n, DType::kF32, upload(picks)});
    EXPECT_EQ(download(got, static_cast<size_t>(count) * n),
              download(want, static_cast<size_t>(count) * n))
        << n;
  }
}

// One row's result does not depend on the others.
TEST_F(CudaRmsNorm, RowsAreIndependent) {
  const int32_t n = 4096, rows = 7;
  const auto x = random_floats(rows * n, 3), weight = random_floats(n, 4);
  const float *dx = upload(x), *dw = upload(weight);
  float *all = output<float>(rows * n), *one = output<float>(n);
  run(cuda::rms_norm, RmsNormParams{dx, n, dw, 1e-6f, rows, n, all, n, DType::kF32});
  const auto many = download(all, rows * n);
  for (int32_t r = 0; r < rows; ++r) {
    run(cuda::rms_norm, RmsNormParams{dx + r * n, n, dw, 1e-6f, 1, n, one, n, DType::kF32});
    const auto single = download(one, n);
    EXPECT_EQ(std::memcmp(single.data(), many.data() + r * n, n * 4), 0);
  }
}

}  // namespace
}  // namespace attune::ops
