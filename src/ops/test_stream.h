// For tests: a CPU stream of a few threads, and the op run on it to its end.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "base/check.h"
#include "device/device.h"

namespace attune::ops::test {

class TestStream {
 public:
  explicit TestStream(int threads) {
    auto device = device::create_cpu_device(threads, "auto");
    ATTUNE_CHECK(device.ok());
    device_ = std::move(*device);
    stream_ = device_->create_stream();
  }
  template <typename Params>
  void run(void (*op)(const Params&, device::Stream&), const Params& params) {
    stream_->launch([&] { op(params, *stream_); });
    stream_->synchronize();
  }
  device::Stream& stream() { return *stream_; }
  device::Device& device() { return *device_; }

 private:
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
};

inline std::vector<float> random_floats(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

}  // namespace attune::ops::test
