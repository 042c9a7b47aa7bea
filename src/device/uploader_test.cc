#include "device/uploader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace attune::device {
namespace {

constexpr uint8_t kGuard = 0xa5;

class UploaderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = create_cpu_device(2, "auto");
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    device_ = std::move(*made);
    stream_ = device_->create_stream();
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

uint8_t byte_at(int64_t i) {
  return static_cast<uint8_t>(i * 131 ^ i >> 8 ^ i >> 16);
}

TEST_F(UploaderTest, CopiesOfAnySizeAreWholeAndStopAtTheirEnd) {
  const auto uploader = Uploader::of(*device_);
  // Less than a thread's piece, a slot, and more than all slots.
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{(256 << 10) + 1},
                              int64_t{16 << 20}, int64_t{(70 << 20) + 7}}) {
    std::vector<uint8_t> from(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < bytes; ++i) from[static_cast<size_t>(i)] = byte_at(i);
    auto to = device_->allocate(bytes + 64, "a test");
    ASSERT_TRUE(to.ok());
    stream_->fill(to->data(), kGuard, bytes + 64);
    ASSERT_TRUE(uploader->copy(to->data(), from.data(), bytes, *stream_).ok());
    from.assign(from.size(), 0);  // it is the caller's again
    stream_->synchronize();
    const auto* out = to->as<uint8_t>();
    for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(out[i], byte_at(i)) << i << " of " << bytes;
    for (int64_t i = bytes; i < bytes + 64; ++i) ASSERT_EQ(out[i], kGuard) << bytes;
  }
}

TEST_F(UploaderTest, MakesEachUnitOnceWhereItBelongs) {
  const auto uploader = Uploader::of(*device_);
  // Units that divide neither a piece nor a slot, and one that is larger than a slot.
  for (const auto& [unit, count] :
       {std::pair<int64_t, int64_t>{12, 3'000'001}, {300'007, 181}, {(20 << 20) + 1, 5}}) {
    auto to = device_->allocate(unit * count, "a test");
    ASSERT_TRUE(to.ok());
    std::vector<std::atomic<int>> made(static_cast<size_t>(count));
    const auto make = [&, unit = unit](int64_t begin, int64_t end, uint8_t* out) {
      for (int64_t i = begin; i < end; ++i, out += unit) {
        ++made[static_cast<size_t>(i)];
        std::fill(out, out + unit, byte_at(i));
      }
    };
    ASSERT_TRUE(uploader->write(to->data(), count, unit, make, *stream_).ok());
    stream_->synchronize();
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(made[static_cast<size_t>(i)], 1) << i;
      const auto* out = to->as<uint8_t>() + i * unit;
      ASSERT_EQ(std::count(out, out + unit, byte_at(i)), unit) << i << " of " << unit << " bytes";
    }
  }
}

TEST_F(UploaderTest, OneServesADeviceWhileItIsHeld) {
  auto first = Uploader::of(*device_);
  EXPECT_EQ(first, Uploader::of(*device_));
  auto other = create_cpu_device(1, "auto");
  ASSERT_TRUE(other.ok());
  EXPECT_NE(first, Uploader::of(**other));
  const std::weak_ptr<Uploader> gone = first;
  first.reset();
  EXPECT_TRUE(gone.expired());
}

// The device refuses the memory: the caller hears of it.
class NoPinnedMemory final : public Device {
 public:
  explicit NoPinnedMemory(Device& device) : device_(device) {}
  const DeviceInfo& info() const override { return device_.info(); }
  Result<Buffer> allocate(int64_t bytes, const std::string& what) override {
    return device_.allocate(bytes, what);
  }
  Result<Buffer> allocate_pinned(int64_t bytes, const std::string& what) override {
    return resource_exhausted(what + ": " + std::to_string(bytes) + " bytes");
  }
  std::unique_ptr<Stream> create_stream() override { return device_.create_stream(); }

 private:
  Device& device_;
};

TEST_F(UploaderTest, SaysThatThereIsNoMemory) {
  NoPinnedMemory device(*device_);
  uint8_t from[8] = {}, to[8] = {};
  EXPECT_EQ(Uploader::of(device)->copy(to, from, 8, *stream_).code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace attune::device
