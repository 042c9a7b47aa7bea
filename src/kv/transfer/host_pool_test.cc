#include "kv/transfer/host_pool.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "kv/transfer/testing/pools.h"

namespace attune::kv {
namespace {

// A device whose pinning is watched, and can be made to wait and to fail.
class PinningDevice final : public device::Device {
 public:
  PinningDevice() { info_.kind = device::Kind::kCuda; }
  ~PinningDevice() override { EXPECT_TRUE(ranges.empty()) << "memory that stays pinned"; }
  const device::DeviceInfo& info() const override { return info_; }
  Result<device::Buffer> allocate(int64_t, const std::string&) override {
    return internal_error("a host pool allocates nothing here");
  }
  Result<device::Buffer> allocate_pinned(int64_t, const std::string&) override {
    return internal_error("nor here");
  }
  std::unique_ptr<device::Stream> create_stream() override { return nullptr; }
  Status pin(void* data, int64_t bytes) override {
    std::unique_lock lock(mutex);
    cv.wait(lock, [&] { return allowed > 0; });
    --allowed;
    if (fail) return resource_exhausted("no more");
    ranges[static_cast<char*>(data)] = bytes;
    return {};
  }
  void unpin(void* data) override {
    std::lock_guard lock(mutex);
    EXPECT_EQ(ranges.erase(static_cast<char*>(data)), 1u);
  }
  void allow(int n) {
    std::lock_guard lock(mutex);
    allowed += n;
    cv.notify_all();
  }
  bool has(const char* at, int64_t bytes) {
    std::lock_guard lock(mutex);
    for (int64_t i = 0; i < bytes; i += 64) {
      auto range = ranges.upper_bound(const_cast<char*>(at + i));
      if (range == ranges.begin()) return false;
      --range;
      if (at + i >= range->first + range->second) return false;
    }
    return true;
  }

  std::mutex mutex;
  std::condition_variable cv;
  int allowed = 0;
  bool fail = false;
  std::map<char*, int64_t> ranges;

 private:
  device::DeviceInfo info_;
};

HostPoolConfig config(HostLayout layout, int64_t part) {
  return {.geometry = test::geometry(2, 64, 16, PageOrder::kHeadMajor, 3),
          .layout = layout,
          .num_slots = 40,
          .threads = 3,
          .part_bytes = part};
}

TEST(HostPool, OnTheCpuAllOfItIsThereAtOnce) {
  auto device = device::create_cpu_device(1, "auto");
  auto pool = HostPool::create(config(HostLayout::kPageFirst, 0), **device);
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  EXPECT_EQ((*pool)->ready_slots(), 40);
  EXPECT_EQ((*pool)->part_bytes(), 0);
  (*pool)->wait();
  const PageRuns last =
      page_runs(test::geometry(2, 64, 16, PageOrder::kHeadMajor, 3), (*pool)->view(), HostSlot(39));
  std::memset(last.first, 1, last.total());
}

// D-32: slots can be used as they are pinned, and only those.
class PinnedInParts : public ::testing::TestWithParam<std::pair<HostLayout, int64_t>> {};

TEST_P(PinnedInParts, BugD32SlotsAreReadyWhenAllOfThemIsPinned) {
  PinningDevice device;
  const HostPoolConfig c = config(GetParam().first, GetParam().second);
  auto made = HostPool::create(c, device);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  HostPool& pool = **made;
  EXPECT_EQ(pool.ready_slots(), 0);
  const int parts = static_cast<int>((pool.bytes() + pool.part_bytes() - 1) / pool.part_bytes());
  int seen = 0;
  for (int i = 0; i < parts; ++i) {
    device.allow(1);
    while (true) {
      std::lock_guard lock(device.mutex);
      if (static_cast<int>(device.ranges.size()) == i + 1) break;
    }
    seen = pool.ready_slots();
    for (int32_t slot = 0; slot < seen; ++slot)
      for (int32_t layer = 0; layer < 3; ++layer) {
        const auto [first, bytes, stride, count] =
            page_runs(c.geometry, pool.view(), HostSlot(slot));
        for (int32_t run = 0; run < count; ++run)
          ASSERT_TRUE(device.has(first + run * stride, bytes)) << "slot " << slot << " of " << seen;
      }
  }
  pool.wait();
  EXPECT_EQ(pool.ready_slots(), 40);
  EXPECT_TRUE(pool.status().ok());
  made->reset();
}

INSTANTIATE_TEST_SUITE_P(Layouts, PinnedInParts,
                         ::testing::Values(std::pair{HostLayout::kLayerFirst, int64_t{8192}},
                                           std::pair{HostLayout::kLayerFirst, int64_t{36864}},
                                           std::pair{HostLayout::kPageFirst, int64_t{12288}},
                                           std::pair{HostLayout::kPageFirstDirect,
                                                     int64_t{1 << 20}}));

TEST(HostPool, StaysAtWhatCouldBePinned) {
  PinningDevice device;
  auto made = HostPool::create(config(HostLayout::kPageFirst, 8192), device);
  ASSERT_TRUE(made.ok());
  device.allow(20);
  while (true) {
    std::lock_guard lock(device.mutex);
    if (device.ranges.size() == 20) break;
  }
  {
    std::lock_guard lock(device.mutex);
    device.fail = true;
  }
  device.allow(1);
  (*made)->wait();
  // A page of 3 layers is 24 KiB, and 20 parts are 160.
  EXPECT_EQ((*made)->ready_slots(), 6);
  EXPECT_EQ((*made)->status().code(), Code::kResourceExhausted);
  EXPECT_NE((*made)->status().message().find("6 of 40"), std::string::npos)
      << (*made)->status().to_string();
  EXPECT_NE((*made)->status().message().find("--hicache-size"), std::string::npos);
}

TEST(HostPool, CanBeClosedWhileItIsPinned) {
  PinningDevice device;
  auto made = HostPool::create(config(HostLayout::kPageFirst, 4096), device);
  ASSERT_TRUE(made.ok());
  device.allow(1000);
  made->reset();
}

TEST(HostPool, RefusesMoreThanCanBePinned) {
  PinningDevice device;
  HostPoolConfig c = config(HostLayout::kLayerFirst, 0);
  c.num_slots = static_cast<int32_t>((pinnable_bytes() + (1LL << 40)) / c.geometry.page_bytes());
  const auto made = HostPool::create(c, device);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kResourceExhausted);
  EXPECT_NE(made.status().message().find("--hicache-size"), std::string::npos);
}

TEST(PinnableBytes, LeavesSomethingToTheMachine) {
  const int64_t bytes = pinnable_bytes();
  EXPECT_GT(bytes, 0);
  std::ifstream in("/proc/meminfo");
  std::string word;
  int64_t total = 0;
  in >> word >> total;
  EXPECT_LE(bytes, total * 1024 - std::min(int64_t{5} << 30, total * 1024 / 20));
}

}  // namespace
}  // namespace attune::kv
