#include "ops/cuda_kernels.h"
#include "ops/gpu_test_util.h"

namespace attune::ops {
namespace {

using test::element;
using test::random_floats;

class CudaActivation : public test::GpuTest {};

TEST_F(CudaActivation, SiluMul) {
  for (DType in : {DType::kF32, DType::kBF16}) {
    for (DType out_dtype : {DType::kF32, DType::kBF16}) {
      for (int32_t n : {1, 7, 64, 1000, 2056, 14336}) {
        for (int32_t gap : {0, 5, 8}) {
          for (int32_t rows : {0, 1, 3}) {
            const int64_t ldx = 2 * n + gap, ldo = n + gap;
            auto x = random_floats(static_cast<size_t>(rows * ldx), n, 8.0f);
            if (rows > 0) x[0] = -200;  // its exponential is infinite
            const auto bytes = test::encode(x, in);
            const auto elem = tensor::dtype_bytes(out_dtype, 1);
            const auto size = static_cast<size_t>(rows * ldo * elem);
            uint8_t* out = output<uint8_t>(size);
            run(cuda::silu_mul,
                SiluMulParams{upload(bytes), in, ldx, rows, n, out, ldo, out_dtype});
            const auto got = download(out, size);
            for (int32_t r = 0; r < rows; ++r) {
              for (int32_t i = 0; i < n; ++i) {
                const double g = element(bytes.data(), in, r * ldx + i),
                             u = element(bytes.data(), in, r * ldx + n + i);
                const double want = g / (1 + std::exp(-g)) * u;
                ASSERT_NEAR(element(got.data(), out_dtype, r * ldo + i), want,
                            std::abs(want) * (1.05 * test::rounding(out_dtype) + 1e-6) + 1e-30)
                    << g << " " << u << ", " << rows << " rows of " << n;
              }
              for (int64_t i = n * elem; i < ldo * elem; ++i)
                ASSERT_EQ(got[r * ldo * elem + i], kPoison);
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaActivation, SoftCap) {
  for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{1023}, int64_t{4096}, int64_t{300001}}) {
    const auto x = random_floats(static_cast<size_t>(count), 5, 60.0f);
    float* out = output(x, static_cast<size_t>(count));
    run(cuda::soft_cap, SoftCapParams{out, count, 30.0f});
    const auto got = download(out, static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) ASSERT_NEAR(got[i], 30 * std::tanh(x[i] / 30.0), 30 * 3e-7);
  }
}

}  // namespace
}  // namespace attune::ops
