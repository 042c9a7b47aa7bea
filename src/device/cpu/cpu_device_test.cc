#include <gtest/gtest.h>

#include "device/device.h"

namespace attune::device {
namespace {

TEST(CpuDevice, StreamRunsInOrderAndEventsFollow) {
  auto device = create_cpu_device(2, "auto");
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  auto stream = (*device)->create_stream();
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream->launch([&order, i] { order.push_back(i); });
  auto event = stream->record();
  event->wait();
  EXPECT_TRUE(event->done());
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(CpuDevice, MemoryIsZeroAndAligned) {
  auto device = create_cpu_device(1, "auto");
  ASSERT_TRUE(device.ok());
  auto buffer = (*device)->allocate(1 << 20, "a test");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  for (int i = 0; i < 1 << 20; ++i) ASSERT_EQ(buffer->as<char>()[i], 0);
}

TEST(CpuDevice, RefusesWhatTheHostLacks) {
  EXPECT_EQ(create_cpu_device(1, "sse9").status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(create_cpu_device(1, "avx2").ok());
  if (detect_cpu_isa() < CpuIsa::kAvx512Bf16) {
    EXPECT_EQ(create_cpu_device(1, "avx512_bf16").status().code(), Code::kUnsupported);
  }
  EXPECT_EQ((*create_cpu_device(1, "auto"))->allocate(int64_t{1} << 60, "too much").status().code(),
            Code::kResourceExhausted);
}

}  // namespace
}  // namespace attune::device
