// What CUPTI tells of kernels of ours; skipped where no GPU can be used.
#include "device/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "device/cuda/testing/test_kernels.h"
#include "device/device.h"

namespace attune::device {
namespace {

constexpr int64_t kCount = 100'003;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class TracerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = create_cuda_device(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = std::move(*device);
    const char* folders = std::getenv("ATTUNE_CUDA_LIBRARIES");
    auto tracer = create_cuda_tracer(folders ? folders : "");
    ASSERT_TRUE(tracer.ok()) << tracer.status().to_string();
    tracer_ = std::move(*tracer);
    stream_ = device_->create_stream();
    auto buffer = device_->allocate(3 * kCount * 4, "a test");
    ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
    buffer_ = std::move(*buffer);
  }
  // Two kernels, of which the second reads the first's.
  void launch_two() {
    uint32_t* at = buffer_.as<uint32_t>();
    testing::launch_iota(*stream_, at, 7, kCount);
    testing::launch_add(*stream_, at + kCount, at, at + 2 * kCount, kCount);
  }
  Trace stop() {
    auto trace = tracer_->stop();
    EXPECT_TRUE(trace.ok()) << trace.status().to_string();
    return trace.ok() ? std::move(*trace) : Trace();
  }
  // Activities whose name has `part`.
  static std::vector<Activity> named(const Trace& trace, const std::string& part) {
    std::vector<Activity> found;
    std::copy_if(
        trace.activities.begin(), trace.activities.end(), std::back_inserter(found),
        [&](const Activity& a) { return trace.names[a.name].find(part) != std::string::npos; });
    return found;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Tracer> tracer_;
  std::unique_ptr<Stream> stream_;
  Buffer buffer_;
};

TEST_F(TracerTest, NamesKernelsCopiesAndFills) {
  stream_->launch([&] { launch_two(); });  // before: not in the trace
  stream_->synchronize();
  const int64_t before = now_ns();
  ASSERT_TRUE(tracer_->start().ok());
  stream_->fill(buffer_.data(), 0, 4096);
  for (int i = 0; i < 3; ++i) stream_->launch([&] { launch_two(); });
  stream_->copy(buffer_.as<uint32_t>() + kCount, buffer_.data(), 1024);
  const Trace trace = stop();
  const int64_t after = now_ns();
  EXPECT_EQ(named(trace, "iota").size(), 3u);
  EXPECT_EQ(named(trace, "add").size(), 3u);
  ASSERT_EQ(named(trace, "copy").size(), 1u);
  EXPECT_EQ(named(trace, "copy")[0].bytes, 1024);
  ASSERT_EQ(named(trace, "fill").size(), 1u);
  EXPECT_EQ(named(trace, "fill")[0].bytes, 4096);
  // In the host's clock, to what reading two clocks one after the other leaves open.
  const int64_t slack = 1'000'000;
  for (const Activity& a : trace.activities) {
    EXPECT_GE(a.begin_ns, before - slack) << trace.names[a.name];
    EXPECT_LE(a.end_ns, after + slack) << trace.names[a.name];
    EXPECT_LT(a.begin_ns, a.end_ns) << trace.names[a.name];
    EXPECT_EQ(a.stream, trace.activities[0].stream);
  }
  EXPECT_TRUE(
      std::is_sorted(trace.activities.begin(), trace.activities.end(),
                     [](const Activity& a, const Activity& b) { return a.begin_ns < b.begin_ns; }));
  EXPECT_GT(named(trace, "iota")[0].grid[0], 1);
}

TEST_F(TracerTest, NamesTheKernelsOfGraphs) {
  auto graph = stream_->capture("a test", [&] { launch_two(); });  // before a trace is asked for
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  const auto run = [&] {
    EXPECT_TRUE(tracer_->start().ok());
    for (int i = 0; i < 4; ++i) (*graph)->launch(*stream_);
    return stop();
  };
  (*graph)->launch(*stream_);
  stream_->synchronize();
  const Trace trace = run();
  EXPECT_EQ(named(trace, "iota").size(), 4u);
  EXPECT_EQ(named(trace, "add").size(), 4u);
  EXPECT_EQ(trace.activities.size(), 8u);
  // Nothing of what runs between two traces.
  (*graph)->launch(*stream_);
  stream_->synchronize();
  EXPECT_EQ(run().activities.size(), 8u);
}

}  // namespace
}  // namespace attune::device
