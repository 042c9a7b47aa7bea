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

TEST(CpuDevice, CopiesAndFillsAreInOrder) {
  auto device = create_cpu_device(1, "auto");
  ASSERT_TRUE(device.ok());
  auto stream = (*device)->create_stream(), other = (*device)->create_stream();
  auto from = (*device)->allocate_pinned(64, "a test"), to = (*device)->allocate(64, "a test");
  ASSERT_TRUE(from.ok() && to.ok());
  stream->fill(from->data(), 7, 64);
  other->wait(stream->record());
  other->copy(to->data(), from->data(), 64);
  other->synchronize();
  for (int i = 0; i < 64; ++i) ASSERT_EQ(to->as<char>()[i], 7);
  EXPECT_TRUE(stream->status().ok());
}

TEST(CpuDevice, AGraphRunsAtEachLaunchAndOnlyThen) {
  auto device = create_cpu_device(1, "auto");
  ASSERT_TRUE(device.ok());
  auto stream = (*device)->create_stream();
  int input = 1, sum = 0;
  auto graph = stream->capture("a test", [&] {
    stream->launch([&] { sum += input; });
    stream->launch([&] { sum *= 2; });
  });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ((*graph)->nodes(), 2);
  stream->synchronize();
  EXPECT_EQ(sum, 0);
  (*graph)->launch(*stream);
  stream->synchronize();
  EXPECT_EQ(sum, 2);
  input = 10;
  (*graph)->launch(*stream);
  stream->synchronize();
  EXPECT_EQ(sum, 24);
  auto updated = (*graph)->update(*stream, [&] { stream->launch([&] { sum = -1; }); });
  ASSERT_TRUE(updated.ok()) << updated.status().to_string();
  (*graph)->launch(*stream);
  stream->synchronize();
  EXPECT_EQ(sum, -1);
  const auto refused = stream->capture("a test", [&] { stream->record()->wait(); });
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "graph 'a test': record, wait, synchronize and notify cannot be captured");
}

}  // namespace
}  // namespace attune::device
