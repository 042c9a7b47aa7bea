#include "kv/transfer/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "kv/transfer/testing/pools.h"

namespace attune::kv {
namespace {

using test::Shape;

constexpr int32_t kHostSlots = 24, kDeviceSlots = 16;

// Copies that end, with the threads that tell of it.
class Ends {
 public:
  Transfer::Done one() {
    std::lock_guard lock(mutex_);
    const size_t i = statuses_.size();
    statuses_.push_back({});
    counts_.push_back(0);
    return [this, i](Status status) {
      std::lock_guard inner(mutex_);
      statuses_[i] = std::move(status);
      ++counts_[i];
      cv_.notify_all();
    };
  }
  void wait() {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] {
      return std::all_of(counts_.begin(), counts_.end(), [](int n) { return n > 0; });
    });
  }
  void expect_once_each() {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < counts_.size(); ++i) EXPECT_EQ(counts_[i], 1) << "done of copy " << i;
  }
  bool ended(size_t i) {
    std::lock_guard lock(mutex_);
    return counts_[i] > 0;
  }
  Status status(size_t i) {
    std::lock_guard lock(mutex_);
    return statuses_[i];
  }

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  std::vector<Status> statuses_;
  std::vector<int> counts_;
};

// Keeps a stream busy until it is opened.
class Door {
 public:
  void close(device::Stream& stream) {
    stream.launch([this] {
      std::unique_lock lock(mutex_);
      cv_.wait(lock, [&] { return open_; });
    });
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    cv_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  bool open_ = false;
};

// A stream of the CPU that fails at its nth copies, as one on a GPU does: nothing of them is done,
// nor of what is launched later, and all events have passed.
class FailingStream final : public device::Stream {
 public:
  FailingStream(std::unique_ptr<device::Stream> inner, int good)
      : in_(std::move(inner)), good_(good) {}
  device::Kind kind() const override { return in_->kind(); }
  void launch(std::function<void()> fn) override { in_->launch(std::move(fn)); }
  void copy(void* to, const void* from, int64_t bytes) override { in_->copy(to, from, bytes); }
  void copy_many(void* const* to, const void* const* from, const size_t* bytes,
                 size_t count) override {
    if (good_-- > 0) return in_->copy_many(to, from, bytes, count);
    in_->launch([this] { failed_ = true; });
  }
  void fill(void* to, uint8_t byte, int64_t bytes) override { in_->fill(to, byte, bytes); }
  std::shared_ptr<device::Event> record() override { return in_->record(); }
  void wait(std::shared_ptr<device::Event> event) override { in_->wait(std::move(event)); }
  void synchronize() override { in_->synchronize(); }
  void notify(std::function<void()> fn) override { in_->notify(std::move(fn)); }
  Result<std::unique_ptr<device::Graph>> capture(const std::string& what,
                                                 const std::function<void()>& fn) override {
    return in_->capture(what, fn);
  }
  Status status() const override { return failed_ ? unavailable("the device is lost") : Status(); }
  base::ThreadPool& pool() override { return in_->pool(); }

 private:
  std::unique_ptr<device::Stream> in_;
  int good_;
  std::atomic<bool> failed_ = false;
};

class FailingDevice final : public device::Device {
 public:
  FailingDevice(std::unique_ptr<device::Device> inner, int good)
      : in_(std::move(inner)), good_(good) {}
  const device::DeviceInfo& info() const override { return in_->info(); }
  Result<device::Buffer> allocate(int64_t bytes, const std::string& what) override {
    return in_->allocate(bytes, what);
  }
  Result<device::Buffer> allocate_pinned(int64_t bytes, const std::string& what) override {
    return in_->allocate_pinned(bytes, what);
  }
  std::unique_ptr<device::Stream> create_stream() override { return in_->create_stream(); }
  std::unique_ptr<device::Stream> create_copy_stream() override {
    return std::make_unique<FailingStream>(in_->create_copy_stream(), good_);
  }

 private:
  std::unique_ptr<device::Device> in_;
  int good_;
};

struct World {
  World(const KvGeometry& g, HostLayout layout, bool layers_apart = false, int good_copies = -1)
      : geometry(g), apart(layers_apart) {
    auto made = device::create_cpu_device(1, "auto");
    EXPECT_TRUE(made.ok());
    device = std::move(*made);
    if (good_copies >= 0) device = std::make_unique<FailingDevice>(std::move(device), good_copies);
    compute = device->create_stream();
    device_bytes = test::random_bytes(g.page_bytes() * kDeviceSlots, 1);
    host_bytes = test::random_bytes(g.page_bytes() * kHostSlots, 2);
    config.geometry = g;
    config.host = make_host_view(g, layout, host_bytes.data(), kHostSlots);
    for (int32_t l = 0; l < g.layers; ++l) {
      const int64_t at = l * g.piece_bytes() * (apart ? kDeviceSlots : 1);
      config.device.push_back(make_view(g, device_bytes.data() + at, kDeviceSlots));
      if (!apart) config.device.back().page_stride = g.page_bytes();
    }
  }
  std::unique_ptr<Transfer> create() {
    auto made = Transfer::create(config, *device, *compute);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? std::move(*made) : nullptr;
  }
  // What `to` has to be when `pages` have been copied to it from `from`, by rows.
  std::vector<uint8_t> expected(const std::vector<PageCopy>& pages, bool to_host) const {
    std::vector<uint8_t> to = to_host ? host_bytes : device_bytes;
    const std::vector<uint8_t>& from = to_host ? device_bytes : host_bytes;
    for (const PageCopy& p : pages)
      test::for_rows(geometry, config.host.layout, kHostSlots, kDeviceSlots, apart,
                     {p.host.value, p.device.value}, [&](int64_t d, int64_t h, int64_t bytes) {
                       std::memcpy(&to[to_host ? h : d], &from[to_host ? d : h], bytes);
                     });
    return to;
  }

  KvGeometry geometry;
  bool apart;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> compute;
  std::vector<uint8_t> device_bytes, host_bytes;
  TransferConfig config;
};

KvGeometry small(int32_t layers = 3) {
  return test::geometry(2, 32, 16, PageOrder::kHeadMajor, layers);
}

struct RoundTrip {
  Shape shape;
  HostLayout layout;
  IoBackend io;
  bool apart;
};

class TransferTest : public ::testing::TestWithParam<RoundTrip> {};

TEST_P(TransferTest, MovesEveryByteAndNoOther) {
  const RoundTrip& what = GetParam();
  World w(what.shape.geometry, what.layout, what.apart);
  w.config.io = what.io;
  w.config.tuning.chunk_bytes = 3 * what.shape.geometry.piece_bytes() + 5;  // several of them
  w.config.host_part_bytes = 4096;
  auto transfer = w.create();
  ASSERT_NE(transfer, nullptr);
  for (bool to_host : {true, false}) {
    const auto pages = test::random_pages(9, kHostSlots, kDeviceSlots, to_host ? 3 : 4);
    const std::vector<uint8_t> want = w.expected(pages, to_host);
    Ends ends;
    if (to_host) {
      transfer->save(pages, ends.one());
    } else {
      transfer->load(pages, ends.one());
    }
    ends.wait();
    EXPECT_TRUE(ends.status(0).ok()) << ends.status(0).to_string();
    EXPECT_TRUE((to_host ? w.host_bytes : w.device_bytes) == want);
  }
  transfer.reset();
}

std::vector<RoundTrip> round_trips() {
  std::vector<RoundTrip> all;
  for (const Shape& shape : test::shapes())
    for (HostLayout layout :
         {HostLayout::kLayerFirst, HostLayout::kPageFirst, HostLayout::kPageFirstDirect})
      for (IoBackend io : {IoBackend::kDirect, IoBackend::kKernel})
        for (bool apart : {false, true})
          if (io == IoBackend::kKernel || layout != HostLayout::kPageFirst)
            all.push_back({shape, layout, io, apart});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, TransferTest, ::testing::ValuesIn(round_trips()),
                         [](const auto& info) {
                           const RoundTrip& r = info.param;
                           return r.shape.name + "_" + std::string(host_layout_name(r.layout)) +
                                  (r.io == IoBackend::kDirect ? "_direct" : "_kernel") +
                                  (r.apart ? "_layers_apart" : "");
                         });

// A save reads what the steps before it wrote, however slow they are; D-35's order.
TEST(Transfer, BugD35SavesStartAfterWhatComputeWasGiven) {
  World w(small(), HostLayout::kLayerFirst);
  auto transfer = w.create();
  const std::vector<PageCopy> pages = {{HostSlot(1), DeviceSlot(2)}};
  Door door;
  door.close(*w.compute);
  w.compute->fill(w.device_bytes.data(), 0x5a, static_cast<int64_t>(w.device_bytes.size()));
  Ends ends;
  transfer->save(pages, ends.one());
  w.compute->launch(
      [&] { EXPECT_FALSE(ends.ended(1)) << "ordered only against what came before"; });
  transfer->save({{HostSlot(3), DeviceSlot(4)}}, ends.one());
  EXPECT_FALSE(ends.ended(0));
  EXPECT_EQ(transfer->stats().queued_pages, 2);
  door.open();
  ends.wait();
  for (int64_t i = 0; i < w.geometry.piece_bytes(); ++i)
    ASSERT_EQ(static_cast<uint8_t>(w.config.host.piece(HostSlot(1), 0)[i]), 0x5a);
}

TEST(Transfer, LoadsStartAfterWhatComputeWasGivenAndGatesWaitForTheirLayer) {
  World w(small(5), HostLayout::kPageFirstDirect);
  w.config.tuning.chunk_bytes = 1;  // a piece at a time
  auto transfer = w.create();
  const auto pages = test::random_pages(6, kHostSlots, kDeviceSlots, 7);
  const std::vector<uint8_t> want = w.expected(pages, false), before = w.device_bytes;
  std::vector<uint8_t> read;
  Door door;
  door.close(*w.compute);
  w.compute->launch([&] { read = w.device_bytes; });
  Ends ends;
  auto gate = transfer->load(pages, ends.one());
  int32_t whole_layers = 0;
  w.compute->launch([&] {
    for (int32_t layer = 0; layer < w.geometry.layers; ++layer) {
      gate->wait(layer, *w.compute);
      bool whole = true;
      for (const PageCopy& p : pages) {
        const int64_t at = test::device_offset(w.geometry, kDeviceSlots, false, p.device.value,
                                               layer, false, 0, 0);
        whole &= std::memcmp(&w.device_bytes[at], &want[at], w.geometry.piece_bytes()) == 0;
      }
      whole_layers += whole;
    }
  });
  door.open();
  ends.wait();
  w.compute->synchronize();
  EXPECT_EQ(whole_layers, w.geometry.layers);
  EXPECT_TRUE(read == before) << "a load began before the step that came first had read";
  EXPECT_TRUE(w.device_bytes == want);
}

// The same in the other half of both pools: whoever asks for copies pins both ends.
std::vector<PageCopy> others(std::vector<PageCopy> pages) {
  for (PageCopy& p : pages) {
    p.host.value += kHostSlots / 2;
    p.device.value += kDeviceSlots / 2;
  }
  return pages;
}

TEST(Transfer, TellsOfEachCopyOnceAndCountsThem) {
  World w(small(), HostLayout::kPageFirst);
  w.config.io = IoBackend::kKernel;
  w.config.tuning.chunk_bytes = 4096;
  auto transfer = w.create();
  Ends ends;
  constexpr int kCopies = 200;
  for (int i = 0; i < kCopies; ++i) {
    const auto pages = test::random_pages(1 + i % 5, kHostSlots / 2, kDeviceSlots / 2, i);
    if (i % 2 == 0) {
      transfer->save(pages, ends.one());
      continue;
    }
    transfer->load(others(pages), ends.one());
  }
  ends.wait();
  const TransferStats stats = transfer->stats();
  EXPECT_EQ(stats.queued_pages, 0);
  EXPECT_EQ(stats.saved_pages + stats.loaded_pages, 600u);
  EXPECT_EQ(stats.saved_bytes, stats.saved_pages * w.geometry.page_bytes());
  EXPECT_GT(stats.save_seconds, 0);
  EXPECT_GT(stats.load_seconds, 0);
  transfer.reset();
  ends.expect_once_each();
}

// A load's `done` may hold the load's gate.
TEST(Transfer, WhatItsEndHoldsIsLetGo) {
  World w(small(), HostLayout::kLayerFirst, false);
  auto transfer = w.create();
  Ends ends;
  auto held = std::make_shared<std::shared_ptr<LayerGate>>();
  const std::weak_ptr<std::shared_ptr<LayerGate>> alive = held;
  *held = transfer->load({{HostSlot(0), DeviceSlot(1)}},
                         [held, end = ends.one()](const Status& status) { end(status); });
  held.reset();
  ends.wait();
  transfer.reset();
  EXPECT_TRUE(alive.expired());
}

TEST(Transfer, AnEmptyCopyEndsToo) {
  World w(small(), HostLayout::kLayerFirst);
  auto transfer = w.create();
  Ends ends;
  auto gate = transfer->load({}, ends.one());
  w.compute->launch([&] { gate->wait(2, *w.compute); });
  transfer->save({}, ends.one());
  ends.wait();
  w.compute->synchronize();
  EXPECT_TRUE(ends.status(0).ok());
}

TEST(Transfer, RefusesSlotsThatAreNotThere) {
  World w(small(), HostLayout::kLayerFirst);
  auto transfer = w.create();
  const std::vector<uint8_t> before = w.host_bytes;
  Ends ends;
  ::testing::internal::CaptureStderr();
  transfer->save({{HostSlot(0), DeviceSlot(1)}, {HostSlot(kHostSlots), DeviceSlot(2)}}, ends.one());
  transfer->load({{HostSlot(0), DeviceSlot(-1)}}, ends.one());
  ends.wait();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("pages were not copied to the host: a copy between"));
  EXPECT_EQ(ends.status(0).code(), Code::kInternal);
  EXPECT_NE(ends.status(0).message().find("host slot 24 of 24"), std::string::npos)
      << ends.status(0).to_string();
  EXPECT_EQ(ends.status(1).code(), Code::kInternal);
  EXPECT_TRUE(w.host_bytes == before);
}

// A failure at any chunk: each copy is told of once, those that were whole before it as done, and
// nobody waits at a gate for ever.
TEST(Transfer, AFailureOfTheDeviceReachesEveryCopy) {
  for (int good = 0; good < 13; ++good) {
    World w(small(), HostLayout::kLayerFirst, false, good);
    w.config.tuning.chunk_bytes = 2 * w.geometry.piece_bytes();
    auto transfer = w.create();
    Ends ends;
    std::vector<std::shared_ptr<LayerGate>> gates;
    for (int i = 0; i < 4; ++i)  // 3 chunks each: a layer of 2 pages
      gates.push_back(transfer->load(
          {{HostSlot(2 * i), DeviceSlot(2 * i)}, {HostSlot(2 * i + 1), DeviceSlot(9)}},
          ends.one()));
    w.compute->launch([&] {
      for (auto& gate : gates) gate->wait(2, *w.compute);
    });
    ends.wait();
    w.compute->synchronize();
    EXPECT_EQ(transfer->stats().queued_pages, 0);
    transfer.reset();
    ends.expect_once_each();
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(ends.status(i).ok() || ends.status(i).code() == Code::kUnavailable);
      if (3 * (i + 1) > good) {
        EXPECT_FALSE(ends.status(i).ok()) << "copy " << i << ", good " << good;
      }
    }
  }
}

TEST(Transfer, NothingRunsWhileHeld) {
  World w(small(), HostLayout::kLayerFirst);
  w.config.tuning.chunk_bytes = 1;
  auto transfer = w.create();
  Ends ends;
  const auto pages = test::random_pages(8, kHostSlots, kDeviceSlots, 1);
  const std::vector<uint8_t> want = w.expected(pages, false);
  transfer->load(pages, ends.one());
  transfer->hold();
  std::atomic<bool> load_first = false, save_later = false;
  w.compute->launch([&] { load_first = w.device_bytes == want; });
  w.compute->synchronize();
  EXPECT_TRUE(load_first) << "what was asked for before is done first";
  transfer->save(test::random_pages(8, kHostSlots, kDeviceSlots, 2), ends.one());
  Door door;
  door.close(*w.compute);
  w.compute->launch([&] { save_later = !ends.ended(1); });
  transfer->resume();
  door.open();
  ends.wait();
  EXPECT_TRUE(save_later) << "copied beside a step that cannot stand it";
}

// Held again as soon as they were let go, step after step: the copies still get on.
TEST(Transfer, HeldCopiesGetOnBetweenSteps) {
  World w(small(), HostLayout::kLayerFirst);
  w.config.tuning.chunk_bytes = 1;
  auto transfer = w.create();
  transfer->hold();
  Ends ends;
  transfer->save(test::random_pages(8, kHostSlots, kDeviceSlots, 2), ends.one());
  int steps = 0;
  for (; !ends.ended(0) && steps < 1000; ++steps) {
    transfer->resume();
    transfer->hold();
    w.compute->synchronize();
  }
  EXPECT_LT(steps, 1000);
  transfer->resume();
}

TEST(Transfer, EndsWhatWasAskedForBeforeItGoes) {
  World w(small(), HostLayout::kLayerFirst);
  w.config.tuning.chunk_bytes = 1;
  w.config.bytes_per_second = 1;  // would take for ever
  auto transfer = w.create();
  const auto pages = test::random_pages(8, kHostSlots, kDeviceSlots, 2);
  const std::vector<uint8_t> want = w.expected(pages, true);
  Ends ends;
  transfer->save(pages, ends.one());
  transfer->hold();
  transfer.reset();
  ends.expect_once_each();
  EXPECT_TRUE(ends.status(0).ok());
  EXPECT_TRUE(w.host_bytes == want);
}

TEST(Transfer, KeepsToTheRate) {
  World w(small(), HostLayout::kLayerFirst);
  const auto pages = test::random_pages(8, kHostSlots / 2, kDeviceSlots / 2, 2);
  const double bytes = 8.0 * static_cast<double>(w.geometry.page_bytes());
  w.config.tuning.chunk_bytes = w.geometry.piece_bytes();
  w.config.bytes_per_second = bytes / 0.2;
  auto transfer = w.create();
  const auto start = std::chrono::steady_clock::now();
  Ends ends;
  transfer->save(pages, ends.one());
  transfer->load(others(pages), ends.one());
  ends.wait();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GT(took.count(), 0.2 * 23 / 24 - 0.01);  // the last of 24 chunks is not waited for
}

TEST(Transfer, ALoadThatAStepWaitsForKeepsToNoRate) {
  World w(small(), HostLayout::kLayerFirst);
  w.config.tuning.chunk_bytes = w.geometry.piece_bytes();
  w.config.bytes_per_second = 1;  // would take days
  auto transfer = w.create();
  Ends ends;
  auto gate = transfer->load(test::random_pages(8, kHostSlots, kDeviceSlots, 2), ends.one());
  w.compute->launch([&] { gate->wait(w.geometry.layers - 1, *w.compute); });
  w.compute->synchronize();
  ends.wait();
}

TEST(Transfer, RefusesWhatItCannotDo) {
  World w(small(), HostLayout::kPageFirst);
  const auto made = Transfer::create(w.config, *w.device, *w.compute);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kUnsupported);
  EXPECT_NE(made.status().message().find("page_first_direct"), std::string::npos);

  World uneven(small(), HostLayout::kLayerFirst);
  uneven.config.device[2].base = uneven.config.device[0].base;
  EXPECT_EQ(Transfer::create(uneven.config, *uneven.device, *uneven.compute).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace attune::kv
