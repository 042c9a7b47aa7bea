// For tests of CUDA kernels: inputs in device memory, outputs that are poisoned and guarded, and
// the CPU's op on the same parameters.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "device/device.h"
#include "ops/ops.h"
#include "ops/test_stream.h"
#include "tensor/half.h"

namespace attune::ops::test {

// Skips where no GPU can be used.
class GpuTest : public ::testing::Test {
 protected:
  static constexpr size_t kGuard = 256;  // bytes on each side of an output
  static constexpr uint8_t kPoison = 0xcb;

  void SetUp() override {
    auto made = device::create_cuda_device(0);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    device_ = std::move(*made);
    stream_ = device_->create_stream();
    ASSERT_TRUE(stream_->status().ok()) << stream_->status().to_string();
  }
  void TearDown() override {
    if (!stream_) return;
    stream_->synchronize();
    EXPECT_TRUE(stream_->status().ok()) << stream_->status().to_string();
  }

  template <typename T>
  T* upload(const std::vector<T>& values) {
    T* to = static_cast<T*>(allocate(values.size() * sizeof(T) + 16));
    if (to) stream_->copy(to, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
    stream_->synchronize();
    return to;
  }
  // Memory with guards around it; all of it is poison, or `start`.
  template <typename T>
  T* output(size_t n) {
    return output(std::vector<T>(), n);
  }
  template <typename T>
  T* output(const std::vector<T>& start) {
    return output(start, start.size());
  }
  template <typename T>
  T* output(const std::vector<T>& start, size_t n) {
    const size_t bytes = n * sizeof(T);
    auto* base = static_cast<uint8_t*>(allocate(bytes + 2 * kGuard));
    if (!base) return nullptr;
    stream_->fill(base, kPoison, static_cast<int64_t>(bytes + 2 * kGuard));
    if (!start.empty()) stream_->copy(base + kGuard, start.data(), static_cast<int64_t>(bytes));
    stream_->synchronize();
    return reinterpret_cast<T*>(base + kGuard);
  }
  // What an output() has; its guards are as they were.
  template <typename T>
  std::vector<T> download(const T* output, size_t n) {
    const size_t bytes = n * sizeof(T);
    std::vector<uint8_t> all(bytes + 2 * kGuard);
    stream_->copy(all.data(), reinterpret_cast<const uint8_t*>(output) - kGuard,
                  static_cast<int64_t>(all.size()));
    stream_->synchronize();
    EXPECT_TRUE(stream_->status().ok()) << stream_->status().to_string();
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(all[i], kPoison) << "guard byte " << i << " before an output";
      EXPECT_EQ(all[kGuard + bytes + i], kPoison) << "guard byte " << i << " behind an output";
      if (::testing::Test::HasFailure()) break;
    }
    std::vector<T> values(n);
    if (n > 0) std::memcpy(values.data(), all.data() + kGuard, bytes);
    return values;
  }
  template <typename Params>
  void run(void (*op)(const Params&, device::Stream&), const Params& params) {
    stream_->launch([&] { op(params, *stream_); });
  }
  template <typename Params>
  void run_on_cpu(void (*op)(const Params&, device::Stream&), const Params& params) {
    if (!cpu_) cpu_ = std::make_unique<TestStream>(2);
    cpu_->run(op, params);
  }
  static const OpTable& cpu_table() { return cpu_ops(device::CpuIsa::kAvx2); }

  void* allocate(size_t bytes) {
    auto made = device_->allocate(static_cast<int64_t>(bytes), "a test");
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return nullptr;
    buffers_.push_back(std::move(*made));
    return buffers_.back().data();
  }

  std::unique_ptr<device::Device> device_;
  std::vector<device::Buffer> buffers_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<TestStream> cpu_;
};

// Elements of any float dtype, as bytes.
inline std::vector<uint8_t> encode(const std::vector<float>& x, DType dtype) {
  const auto size = static_cast<size_t>(tensor::dtype_bytes(dtype, 1));
  std::vector<uint8_t> out(x.size() * size);
  for (size_t i = 0; i < x.size(); ++i) {
    const uint16_t half =
        dtype == DType::kBF16 ? tensor::f32_to_bf16(x[i]) : tensor::f32_to_f16(x[i]);
    const uint8_t byte =
        dtype == DType::kF8E4M3 ? tensor::f32_to_f8e4m3(x[i]) : tensor::f32_to_f8e5m2(x[i]);
    std::memcpy(&out[i * size],
                size == 4   ? static_cast<const void*>(&x[i])
                : size == 2 ? static_cast<const void*>(&half)
                            : &byte,
                size);
  }
  return out;
}

inline float element(const void* base, DType dtype, int64_t i) {
  const auto* bytes = static_cast<const uint8_t*>(base);
  float f;
  uint16_t h;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(&f, bytes + i * 4, 4);
      return f;
    case DType::kF8E4M3:
      return tensor::f8e4m3_to_f32(bytes[i]);
    case DType::kF8E5M2:
      return tensor::f8e5m2_to_f32(bytes[i]);
    default:
      std::memcpy(&h, bytes + i * 2, 2);
      return dtype == DType::kBF16 ? tensor::bf16_to_f32(h) : tensor::f16_to_f32(h);
  }
}

// Half a unit in the last place of a type, relative: what one rounding may cost.
inline double rounding(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF8E4M3:
      return 0x1p-4;
    default:
      return 0x1p-3;
  }
}

}  // namespace attune::ops::test
