// What needs a GPU; skipped where none can be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <future>
#include <thread>

#include "device/arena.h"
#include "device/cuda/testing/test_kernels.h"
#include "device/device.h"
#include "device/uploader.h"

namespace attune::device {
namespace {

using ::testing::HasSubstr;
using testing::launch_add;
using testing::launch_iota;

constexpr int64_t kCount = 100'003;  // no multiple of a block

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = create_cuda_device(0);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    device_ = std::move(*made);
    stream_ = device_->create_stream();
    ASSERT_TRUE(stream_->status().ok()) << stream_->status().to_string();
  }
  uint32_t* on_device(int64_t n) { return keep(device_->allocate(n * 4, "a test")); }
  uint32_t* pinned(int64_t n) { return keep(device_->allocate_pinned(n * 4, "a test")); }
  uint32_t* keep(Result<Buffer> made) {
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return nullptr;
    buffers_.push_back(std::move(*made));
    return buffers_.back().as<uint32_t>();
  }
  void expect_ok() { EXPECT_TRUE(stream_->status().ok()) << stream_->status().to_string(); }

  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
};

// Not under compute-sanitizer, which makes launches wait, tells of calls that shall fail, and takes
// memory of its own.
class CudaAsyncTest : public CudaDeviceTest {};
class CudaRefusalTest : public CudaDeviceTest {};
class CudaSoakTest : public CudaDeviceTest {};

// 0 until it is opened; kernels wait for it.
void open(uint32_t* flag) {
  std::atomic_ref<uint32_t>(*flag).store(1, std::memory_order_release);
}

TEST_F(CudaDeviceTest, TellsWhatItIs) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(info.kind, Kind::kCuda);
  EXPECT_GE(info.sm, 80);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_GT(info.free_memory, 0);
  EXPECT_LE(info.free_memory, info.total_memory);
  std::printf("device: %s\n", info.name.c_str());
}

TEST_F(CudaDeviceTest, MemoryIsZeroAndAligned) {
  uint32_t* from = on_device(kCount);
  uint32_t* to = pinned(kCount);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(from) % 256, 0u);
  stream_->launch([&] { launch_iota(*stream_, from, 7, kCount); });
  stream_->synchronize();
  buffers_.erase(buffers_.begin());
  from = on_device(kCount);  // most likely the same memory
  std::fill_n(to, kCount, 1);
  stream_->copy(to, from, kCount * 4);
  stream_->synchronize();
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(to[i], 0u) << i;
  expect_ok();
}

TEST_F(CudaDeviceTest, WorkOfAStreamRunsInOrder) {
  uint32_t* a = on_device(kCount);
  uint32_t* add = on_device(1);
  uint32_t* back = pinned(kCount);
  stream_->launch([&] {
    launch_iota(*stream_, add, 3, 1);
    launch_iota(*stream_, a, 10, kCount);
    for (int i = 0; i < 50; ++i) launch_add(*stream_, a, a, add, kCount);
  });
  stream_->copy(back, a, kCount * 4);
  stream_->fill(a, 0xff, kCount * 4);
  stream_->synchronize();
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(back[i], 10 + i + 50 * 3) << i;
  stream_->copy(back, a, kCount * 4);
  stream_->synchronize();
  EXPECT_EQ(back[kCount - 1], 0xffffffffu);
  expect_ok();
}

TEST_F(CudaDeviceTest, ALibrarysFailureIsTheCapturesOrTheStreams) {
  const auto failing = [&] { stream_->fail(internal_error("a library's reason")); };
  const auto graph = stream_->capture("a graph", failing);
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.status().message(), HasSubstr("a library's reason"));
  expect_ok();
  stream_->launch(failing);
  EXPECT_THAT(stream_->status().message(), HasSubstr("a library's reason"));
  stream_->launch([] { FAIL() << "launched after a failure"; });
}

TEST_F(CudaAsyncTest, EventsAndNoticesFollowTheWork) {
  uint32_t* flag = pinned(1);
  std::promise<void> told;
  std::atomic<int> calls{0};
  auto before = stream_->record();
  before->wait();
  EXPECT_TRUE(before->done());
  stream_->launch([&] { testing::launch_until(*stream_, flag); });
  auto after = stream_->record();
  stream_->notify([&] { ++calls; });
  stream_->notify([&] {
    ++calls;
    told.set_value();
  });
  // The kernel waits for the flag, so that none of these can be a matter of luck.
  EXPECT_FALSE(after->done());
  EXPECT_EQ(calls, 0);
  open(flag);
  after->wait();
  EXPECT_TRUE(after->done());
  told.get_future().wait();
  EXPECT_EQ(calls, 2);
  expect_ok();
}

TEST_F(CudaAsyncTest, AStreamWaitsForAnEventOfAnother) {
  auto other = device_->create_stream();
  uint32_t* flag = pinned(1);
  uint32_t* a = on_device(kCount);
  uint32_t* back = pinned(kCount);
  other->launch([&] {
    testing::launch_until(*other, flag);
    launch_iota(*other, a, 5, kCount);
  });
  stream_->wait(other->record());
  stream_->copy(back, a, kCount * 4);
  auto copied = stream_->record();
  EXPECT_FALSE(copied->done());
  open(flag);
  copied->wait();
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(back[i], 5 + i) << i;
  expect_ok();
  EXPECT_TRUE(other->status().ok());
}

// The host goes on while copies from and to pinned memory wait behind a kernel.
TEST_F(CudaAsyncTest, PinnedCopiesDoNotHoldTheHost) {
  uint32_t* flag = pinned(1);
  uint32_t* there = pinned(kCount);
  uint32_t* back = pinned(kCount);
  uint32_t* a = on_device(kCount);
  for (int64_t i = 0; i < kCount; ++i) there[i] = static_cast<uint32_t>(3 * i);
  stream_->launch([&] { testing::launch_until(*stream_, flag); });
  stream_->copy(a, there, kCount * 4);
  stream_->copy(back, a, kCount * 4);
  auto copied = stream_->record();
  EXPECT_FALSE(copied->done()) << "had a copy waited, the kernel would have given up";
  EXPECT_EQ(back[1], 0u);
  open(flag);
  copied->wait();
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(back[i], 3 * i) << i;
  expect_ok();
}

// More than all of its slots hold, so that each is filled again while the last copy may still run.
TEST_F(CudaDeviceTest, AnUploaderKeepsWhatIsOnItsWay) {
  constexpr int64_t kWords = 20'000'003;
  const auto uploader = Uploader::of(*device_);
  uint32_t *to = on_device(kWords + 1), *back = pinned(kWords + 1);
  stream_->fill(to, 0xee, (kWords + 1) * 4);
  const auto make = [](int64_t begin, int64_t end, uint8_t* out) {
    for (int64_t i = begin; i < end; ++i, out += 4) {
      const auto value = static_cast<uint32_t>(i * 2654435761);
      std::memcpy(out, &value, 4);
    }
  };
  ASSERT_TRUE(uploader->write(to, kWords, 4, make, *stream_).ok());
  stream_->copy(back, to, (kWords + 1) * 4);
  stream_->synchronize();
  expect_ok();
  int64_t wrong = 0;
  for (int64_t i = 0; i < kWords; ++i) wrong += back[i] != static_cast<uint32_t>(i * 2654435761);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(back[kWords], 0xeeeeeeeeu);
}

TEST_F(CudaDeviceTest, AGraphReadsWhatItsBuffersHoldAtEachLaunch) {
  uint32_t* host_in = pinned(1);
  uint32_t* host_out = pinned(kCount);
  uint32_t* a = on_device(kCount);
  uint32_t* add = on_device(1);
  const auto work = [&](int times) {
    stream_->copy(add, host_in, 4);
    stream_->launch([&] {
      launch_iota(*stream_, a, 1, kCount);
      for (int i = 0; i < times; ++i) launch_add(*stream_, a, a, add, kCount);
    });
    stream_->copy(host_out, a, kCount * 4);
  };
  auto graph = stream_->capture("a test", [&] { work(2); });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ((*graph)->nodes(), 5);
  stream_->synchronize();
  EXPECT_EQ(host_out[0], 0u) << "capturing runs nothing";
  const auto expect_out = [&](uint32_t added) {
    (*graph)->launch(*stream_);
    stream_->synchronize();
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(host_out[i], 1 + i + added) << i;
  };
  for (uint32_t value : {10u, 77u}) {
    *host_in = value;
    expect_out(2 * value);
  }
  auto same = (*graph)->update(*stream_, [&] { work(2); });
  ASSERT_TRUE(same.ok()) << same.status().to_string();
  EXPECT_EQ(*same, GraphUpdate::kInPlace);
  auto longer = (*graph)->update(*stream_, [&] { work(4); });
  ASSERT_TRUE(longer.ok()) << longer.status().to_string();
  EXPECT_EQ(*longer, GraphUpdate::kInstantiated);
  EXPECT_EQ((*graph)->nodes(), 7);
  expect_out(4 * 77);
  expect_ok();
}

TEST_F(CudaDeviceTest, AnUpdateInPlaceTakesTheNewArguments) {
  uint32_t* a = on_device(kCount);
  uint32_t* back = pinned(kCount);
  const auto work = [&](uint32_t value, int64_t n) {
    stream_->launch([&] { launch_iota(*stream_, a, value, n); });
  };
  auto graph = stream_->capture("a test", [&] { work(1, 10); });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  auto updated = (*graph)->update(*stream_, [&] { work(9, kCount); });
  ASSERT_TRUE(updated.ok()) << updated.status().to_string();
  EXPECT_EQ(*updated, GraphUpdate::kInPlace);
  (*graph)->launch(*stream_);
  stream_->copy(back, a, kCount * 4);
  stream_->synchronize();
  EXPECT_EQ(back[kCount - 1], 9 + kCount - 1);
  expect_ok();
}

TEST_F(CudaRefusalTest, WhatCannotBeCapturedIsRefusedAndTheStreamGoesOn) {
  auto refused = stream_->capture("a test", [&] { stream_->record(); });
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("graph 'a test': record"));
  auto impossible = stream_->capture(
      "a test", [&] { stream_->launch([&] { testing::launch_impossible(*stream_); }); });
  EXPECT_EQ(impossible.status().code(), Code::kInternal);
  EXPECT_THAT(impossible.status().message(), HasSubstr("impossible<<<1, 4096>>>()"));
  expect_ok();
  uint32_t* a = on_device(16);
  uint32_t* back = pinned(16);
  stream_->launch([&] { launch_iota(*stream_, a, 1, 16); });
  stream_->copy(back, a, 64);
  stream_->synchronize();
  EXPECT_EQ(back[15], 16u);
  expect_ok();
}

TEST_F(CudaRefusalTest, AnImpossibleLaunchFailsItsStreamAlone) {
  stream_->launch([&] { testing::launch_impossible(*stream_); });
  const Status status = stream_->status();
  EXPECT_EQ(status.code(), Code::kInternal) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("impossible<<<1, 4096>>>()"));
  bool called = false;
  stream_->launch([&] { called = true; });
  EXPECT_FALSE(called) << "what follows a failure is not launched";
  std::promise<void> told;
  stream_->notify([&] { told.set_value(); });
  told.get_future().wait();  // whoever waits is told all the same
  auto other = device_->create_stream();
  uint32_t* a = on_device(16);
  other->launch([&] { launch_iota(*other, a, 1, 16); });
  other->synchronize();
  EXPECT_TRUE(other->status().ok()) << other->status().to_string();
  other->wait(stream_->record());
  EXPECT_THAT(other->status().message(), HasSubstr("waited for a stream: "));
}

TEST_F(CudaRefusalTest, MemoryThatIsNotThereIsAStatus) {
  const auto huge = device_->allocate(int64_t{1} << 50, "a petabyte");
  EXPECT_EQ(huge.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(huge.status().message(), HasSubstr("bytes of device memory for a petabyte"));
  EXPECT_THAT(huge.status().message(), HasSubstr("bytes are free"));
  auto arena = Arena::create(*device_, 1 << 20, "the budget");
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
  ASSERT_TRUE(arena->take(1 << 19, "half").ok());
  auto rest = arena->take(1 << 19, "the rest");
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(arena->take(1, "more").status().code(), Code::kResourceExhausted);
  uint32_t* back = pinned(1 << 17);
  std::fill_n(back, 1 << 17, 1);
  stream_->copy(back, *rest, 1 << 19);
  stream_->synchronize();
  EXPECT_EQ(back[(1 << 17) - 1], 0u);
  expect_ok();
}

TEST_F(CudaSoakTest, SteadyStateTakesNoDeviceMemory) {
  uint32_t* a = on_device(kCount);
  uint32_t* back = pinned(kCount);
  auto graph = stream_->capture("a test", [&] {
    stream_->launch([&] { launch_iota(*stream_, a, 1, kCount); });
    stream_->copy(back, a, kCount * 4);
  });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  const auto step = [&] {
    (*graph)->launch(*stream_);
    auto event = stream_->record();
    event->wait();
  };
  step();
  const int64_t free = (*create_cuda_device(0))->info().free_memory;
  std::weak_ptr<Event> first = stream_->record();
  for (int i = 0; i < 1000; ++i) step();
  EXPECT_EQ((*create_cuda_device(0))->info().free_memory, free);
  EXPECT_FALSE(first.expired()) << "events are used again";
  expect_ok();
}

// In a process of its own, which it costs: nothing but its end gives the device back.
TEST(CudaFaultDeathTest, AKernelsFaultIsAStatusThatNamesTheLaunch) {
  if (auto device = create_cuda_device(0); !device.ok()) GTEST_SKIP() << device.status().message();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fault = [] {
    auto device = create_cuda_device(0);
    auto stream = (*device)->create_stream();
    stream->launch(
        [&] { testing::launch_wild_write(*stream, reinterpret_cast<uint32_t*>(0x10), 5); });
    std::promise<void> told;
    stream->notify([&] { told.set_value(); });
    told.get_future().wait();  // not for ever, although the work never completes
    const bool unavailable = stream->status().code() == Code::kUnavailable;
    const Status later = (*device)->allocate(4, "what comes later").status();
    std::fprintf(stderr, "%s\n", stream->status().message().c_str());
    std::_Exit(unavailable && later.code() == Code::kUnavailable ? 0 : 1);
  };
  EXPECT_EXIT(fault(), ::testing::ExitedWithCode(0),
              "device is lost to this process: restart it; last launches, newest first: "
              "wild_write<<<1, 1>>>\\(address=16, value=5\\)");
}

}  // namespace
}  // namespace attune::device
