#include "device/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attune::device {
namespace {

using testing::HasSubstr;

// Counts what is taken and given back, and has so much memory.
class CountedDevice final : public Device {
 public:
  explicit CountedDevice(int64_t memory) : memory_(memory) {}
  const DeviceInfo& info() const override { return info_; }
  Result<Buffer> allocate(int64_t bytes, const std::string& what) override {
    if (bytes > memory_) return resource_exhausted("no " + what);
    ++taken;
    void* p = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return Buffer(p, bytes, [this](void* q) {
      ++given_back;
      std::free(q);
    });
  }
  Result<Buffer> allocate_pinned(int64_t bytes, const std::string& what) override {
    return allocate(bytes, what);
  }
  std::unique_ptr<Stream> create_stream() override { return nullptr; }

  int taken = 0, given_back = 0;

 private:
  DeviceInfo info_;
  int64_t memory_;
};

TEST(Arena, TakesOnceFromTheDeviceAndGivesBackWhole) {
  CountedDevice device(1 << 20);
  {
    auto arena = Arena::create(device, 4096, "device memory");
    ASSERT_TRUE(arena.ok()) << arena.status().to_string();
    auto a = arena->take(100, "a"), b = arena->take(1, "b"), c = arena->take(300, "c");
    ASSERT_TRUE(a.ok() && b.ok() && c.ok());
    EXPECT_EQ(static_cast<char*>(*b) - static_cast<char*>(*a), 256);
    EXPECT_EQ(static_cast<char*>(*c) - static_cast<char*>(*b), 256);
    EXPECT_EQ(arena->used(), 256 + 256 + 512);
    EXPECT_EQ(arena->left(), 4096 - arena->used());
    EXPECT_EQ(device.taken, 1);
    Arena moved = std::move(*arena);
    EXPECT_EQ(moved.left(), 4096 - 1024);
    EXPECT_EQ(device.given_back, 0);
  }
  EXPECT_EQ(device.given_back, 1);
}

TEST(Arena, SaysWhatWasWantedAndWhatIsLeft) {
  CountedDevice device(1 << 20);
  auto arena = Arena::create(device, 1000, "the budget");
  ASSERT_TRUE(arena.ok());
  ASSERT_TRUE(arena->take(500, "weights").ok());
  const auto refused = arena->take(489, "KV cache");
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("KV cache needs 489 bytes of the budget"));
  EXPECT_THAT(refused.status().message(), HasSubstr("weights 500 bytes; 488 of 1000 bytes are"));
  EXPECT_EQ(arena->used(), 512) << "a refusal changes nothing";
  EXPECT_TRUE(arena->take(488, "the rest").ok());  // not a multiple of the alignment
  EXPECT_EQ(arena->left(), 0);
  EXPECT_FALSE(arena->take(1, "one more").ok());
  EXPECT_EQ(*arena->take(0, "nothing"), nullptr);
}

TEST(Arena, RefusesWhatNoDeviceHas) {
  CountedDevice device(1000);
  EXPECT_EQ(Arena::create(device, 1001, "m").status().code(), Code::kResourceExhausted);
  EXPECT_EQ(Arena::create(device, 0, "m").status().code(), Code::kInvalidArgument);
  auto arena = Arena::create(device, 1000, "m");
  EXPECT_EQ(arena->take(-1, "m").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(arena->take(INT64_MAX, "m").status().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace attune::device
