#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "kv/transfer/host_pool.h"
#include "kv/transfer/testing/pools.h"
#include "kv/transfer/transfer.h"
#include "ops/kvcopy/kvcopy.h"

namespace attune::kv {
namespace {

using test::Shape;

constexpr int32_t kHostSlots = 40, kDeviceSlots = 32;

class Ends {
 public:
  Transfer::Done one() {
    std::lock_guard lock(mutex_);
    ++under_way_;
    return [this](Status status) {
      std::lock_guard inner(mutex_);
      statuses_.push_back(std::move(status));
      --under_way_;
      cv_.notify_all();
    };
  }
  // The first failure of all copies so far.
  Status wait() {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] { return under_way_ == 0; });
    for (const Status& s : statuses_) ATTUNE_RETURN_IF_ERROR(s);
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  int under_way_ = 0;
  std::vector<Status> statuses_;
};

class TransferGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = device::create_cuda_device(0);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    device_ = std::move(*made);
    compute_ = device_->create_stream();
  }
  void TearDown() override {
    if (!compute_) return;
    compute_->synchronize();
    EXPECT_TRUE(compute_->status().ok()) << compute_->status().to_string();
  }

  // Pools of random bytes; the device's lies between guards.
  void make_pools(const KvGeometry& g, HostLayout layout, int64_t part_bytes = 0) {
    geometry_ = g;
    auto host = HostPool::create(
        {.geometry = g, .layout = layout, .num_slots = kHostSlots, .part_bytes = part_bytes},
        *device_);
    ASSERT_TRUE(host.ok()) << host.status().to_string();
    host_ = std::move(*host);
    host_->wait();
    ASSERT_TRUE(host_->status().ok()) << host_->status().to_string();
    ASSERT_EQ(host_->ready_slots(), kHostSlots);
    pool_bytes_ = g.page_bytes() * kDeviceSlots;
    auto pool = device_->allocate(pool_bytes_ + 2 * kGuard, "a test");
    ASSERT_TRUE(pool.ok()) << pool.status().to_string();
    pool_ = std::move(*pool);
    device_image_ = test::random_bytes(pool_.bytes(), 1);
    const auto bytes = test::random_bytes(g.page_bytes() * kHostSlots, 2);
    std::copy(bytes.begin(), bytes.end(), host_->view().base);
    compute_->copy(pool_.data(), device_image_.data(), pool_.bytes());
    compute_->synchronize();
    config_ = {.geometry = g, .host = host_->view(), .host_part_bytes = host_->part_bytes()};
    for (int32_t l = 0; l < g.layers; ++l)
      config_.device.push_back(make_view(
          g, pool_.as<char>() + kGuard + l * g.piece_bytes() * kDeviceSlots, kDeviceSlots));
  }
  std::unique_ptr<Transfer> create() {
    auto made = Transfer::create(config_, *device_, *compute_);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? std::move(*made) : nullptr;
  }
  std::vector<uint8_t> host_bytes() const {
    const auto* base = reinterpret_cast<const uint8_t*>(host_->view().base);
    return {base, base + geometry_.page_bytes() * kHostSlots};
  }
  std::vector<uint8_t> device_bytes() {
    std::vector<uint8_t> bytes(static_cast<size_t>(pool_.bytes()));
    compute_->copy(bytes.data(), pool_.data(), pool_.bytes());
    compute_->synchronize();
    return bytes;
  }
  std::vector<uint8_t> expected(const std::vector<PageCopy>& pages, bool to_host) {
    const std::vector<uint8_t> host = host_bytes(), device = device_bytes();
    std::vector<uint8_t> to = to_host ? host : device;
    for (const PageCopy& p : pages)
      test::for_rows(geometry_, host_->view().layout, kHostSlots, kDeviceSlots, true,
                     {p.host.value, p.device.value}, [&](int64_t d, int64_t h, int64_t bytes) {
                       d += kGuard;
                       std::memcpy(&to[to_host ? h : d], (to_host ? &device[d] : &host[h]), bytes);
                     });
    return to;
  }
  void expect_round_trip(const std::string& what, uint32_t seed, int32_t count = 20) {
    auto transfer = create();
    ASSERT_NE(transfer, nullptr);
    for (bool to_host : {true, false}) {
      const auto pages = test::random_pages(count, kHostSlots, kDeviceSlots, seed + to_host);
      const std::vector<uint8_t> want = expected(pages, to_host);
      Ends ends;
      if (to_host) {
        transfer->save(pages, ends.one());
      } else {
        transfer->load(pages, ends.one());
      }
      const Status status = ends.wait();
      ASSERT_TRUE(status.ok()) << what << ": " << status.to_string();
      ASSERT_TRUE((to_host ? host_bytes() : device_bytes()) == want)
          << what << (to_host ? ", to host" : ", to device");
    }
  }

  static constexpr int64_t kGuard = 4096;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> compute_;
  KvGeometry geometry_;
  std::unique_ptr<HostPool> host_;
  device::Buffer pool_;
  int64_t pool_bytes_ = 0;
  std::vector<uint8_t> device_image_;
  TransferConfig config_;
};

std::string name_of(HostLayout layout, IoBackend io) {
  return std::string(host_layout_name(layout)) + (io == IoBackend::kDirect ? " direct" : " kernel");
}

// D-34 is among the shapes: sizes of a token that are no power of two.
TEST_F(TransferGpuTest, BugD34EveryShapeLayoutAndIoMovesEveryByteAndNoOther) {
  for (const Shape& shape : test::shapes())
    for (HostLayout layout :
         {HostLayout::kLayerFirst, HostLayout::kPageFirst, HostLayout::kPageFirstDirect}) {
      make_pools(shape.geometry, layout, 8192);
      if (HasFatalFailure()) return;
      for (IoBackend io : {IoBackend::kDirect, IoBackend::kKernel}) {
        if (io == IoBackend::kDirect && layout == HostLayout::kPageFirst) continue;
        config_.io = io;
        for (int64_t chunk : {int64_t{0}, 5 * shape.geometry.piece_bytes() + 3}) {
          config_.tuning.chunk_bytes = chunk;
          expect_round_trip(shape.name + " " + name_of(layout, io), 3);
          if (HasFatalFailure()) return;
        }
      }
    }
}

TEST_F(TransferGpuTest, EveryTuningOfTheKernelMovesTheSame) {
  for (HostLayout layout : {HostLayout::kLayerFirst, HostLayout::kPageFirst}) {
    make_pools(test::geometry(8, 128, 16, PageOrder::kHeadMajor), layout);
    if (HasFatalFailure()) return;
    config_.io = IoBackend::kKernel;
    for (int ctas : {1, 9})
      for (int warps : {1, 4, 8})
        for (int tile : {512, 16384, 48000})
          for (int slots : {2, 32})
            for (int stores : {1, 16}) {
              config_.tuning.save = {ctas,
                                     warps,
                                     tile,
                                     slots,
                                     stores,
                                     /*bytes_per_second=*/slots == 2 ? 20e9 : 0};
              config_.tuning.load = config_.tuning.save;
              expect_round_trip("ctas " + std::to_string(ctas) + " tile " + std::to_string(tile) +
                                    " slots " + std::to_string(slots),
                                5, 6);
              if (HasFatalFailure()) return;
            }
  }
}

// More pages than one launch takes; each of them again and again, with the same bytes.
TEST_F(TransferGpuTest, ManyPagesAtOnce) {
  make_pools(test::geometry(1, 64, 1, PageOrder::kHeadMajor, 3), HostLayout::kLayerFirst);
  if (HasFatalFailure()) return;
  config_.io = IoBackend::kKernel;
  auto transfer = create();
  for (int count : {127, 128, 129, 1024, 2500}) {
    std::vector<PageCopy> pages;
    for (int i = 0; i < count; ++i)
      pages.push_back({HostSlot(i % kDeviceSlots), DeviceSlot(i * 7 % kDeviceSlots)});
    const std::vector<uint8_t> want = expected(pages, true);
    Ends ends;
    transfer->save(pages, ends.one());
    const Status status = ends.wait();
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_TRUE(host_bytes() == want) << count;
    std::fill_n(host_->view().base, geometry_.page_bytes() * kHostSlots, 0);
  }
  transfer.reset();
}

// Ids outside of the pools, on either side and in either direction, move nothing and are counted.
TEST_F(TransferGpuTest, KernelChecksSlotsItself) {
  for (const KvGeometry& g :
       {test::geometry(2, 64, 16, PageOrder::kHeadMajor), test::latent(132, 1)})
    for (HostLayout layout : {HostLayout::kLayerFirst, HostLayout::kPageFirst}) {
      make_pools(g, layout);
      if (HasFatalFailure()) return;
      auto bad = device_->allocate_pinned(64, "a test");
      ASSERT_TRUE(bad.ok());
      const std::vector<ops::KvCopyPage> pages = {
          {3, 5}, {-1, 2}, {2, -1}, {kHostSlots, 1}, {1, kDeviceSlots}, {1 << 30, 1 << 30}, {4, 6}};
      const std::vector<PageCopy> good = {{HostSlot(3), DeviceSlot(5)},
                                          {HostSlot(4), DeviceSlot(6)}};
      for (bool to_host : {true, false}) {
        *bad->as<int32_t>() = 0;
        const std::vector<uint8_t> want = expected(good, to_host);
        ops::KvCopyParams p{.to_host = to_host,
                            .pages = pages.data(),
                            .count = static_cast<int32_t>(pages.size()),
                            .layers = g.layers,
                            .host = host_->view().base,
                            .device = pool_.as<char>() + kGuard,
                            .host_slot_stride = host_->view().slot_stride,
                            .host_layer_stride = host_->view().layer_stride,
                            .device_slot_stride = g.piece_bytes(),
                            .device_layer_stride = g.piece_bytes() * kDeviceSlots,
                            .host_slots = kHostSlots,
                            .device_slots = kDeviceSlots,
                            .piece_bytes = g.piece_bytes(),
                            .bad = bad->as<int32_t>()};
        if (layout == HostLayout::kPageFirst) {
          const auto k = static_cast<int32_t>(g.layer.k_dim * g.elem_bytes());
          p.tokens = g.page_size;
          p.host_token_stride = host_->view().token_stride;
          p.k = {g.layer.kv_heads, k, 0, int64_t{k} * g.page_size, k};
          if (!g.layer.v_in_k)
            p.v = {g.layer.kv_heads, k, g.k_bytes(), int64_t{k} * g.page_size, k};
        }
        compute_->launch([&] { ops::op_table(device_->info()).kv_copy(p, *compute_); });
        compute_->synchronize();
        ASSERT_TRUE(compute_->status().ok()) << compute_->status().to_string();
        EXPECT_EQ(*bad->as<int32_t>(), 5);
        EXPECT_TRUE((to_host ? host_bytes() : device_bytes()) == want);
      }
    }
}

// A forward pass in layers reads each only when it is there, and no sooner than what came before
// has read the old one.
TEST_F(TransferGpuTest, GatesOrderLayersWithTheSteps) {
  for (IoBackend io : {IoBackend::kDirect, IoBackend::kKernel}) {
    make_pools(test::geometry(8, 128, 64, PageOrder::kHeadMajor, 12), HostLayout::kLayerFirst);
    if (HasFatalFailure()) return;
    config_.io = io;
    config_.tuning.chunk_bytes = 1 << 20;
    auto transfer = create();
    const auto pages = test::random_pages(24, kHostSlots, kDeviceSlots, 3);
    const std::vector<uint8_t> want = expected(pages, false), before = device_bytes();
    auto old_image = device_->allocate(pool_.bytes(), "a test"),
         image = device_->allocate(pool_.bytes(), "a test");
    ASSERT_TRUE(old_image.ok() && image.ok());
    for (int i = 0; i < 20; ++i) compute_->copy(image->data(), pool_.data(), pool_.bytes());
    compute_->copy(old_image->data(), pool_.data(), pool_.bytes());
    Ends ends;
    auto gate = transfer->load(pages, ends.one());
    const int64_t layer_bytes = geometry_.piece_bytes() * kDeviceSlots;
    for (int32_t l = 0; l < geometry_.layers; ++l) {
      gate->wait(l, *compute_);
      compute_->copy(image->as<char>() + kGuard + l * layer_bytes,
                     pool_.as<char>() + kGuard + l * layer_bytes, layer_bytes);
    }
    const Status status = ends.wait();
    ASSERT_TRUE(status.ok()) << status.to_string();
    const auto contents = [&](const device::Buffer& b) {
      std::vector<uint8_t> bytes(static_cast<size_t>(b.bytes()));
      compute_->copy(bytes.data(), b.data(), b.bytes());
      compute_->synchronize();
      bytes.erase(bytes.begin(), bytes.begin() + kGuard);
      bytes.resize(bytes.size() - kGuard);
      return bytes;
    };
    const auto inner = [&](std::vector<uint8_t> b) {
      b.erase(b.begin(), b.begin() + kGuard);
      b.resize(b.size() - kGuard);
      return b;
    };
    EXPECT_TRUE(contents(*image) == inner(want)) << name_of(HostLayout::kLayerFirst, io);
    EXPECT_TRUE(contents(*old_image) == inner(before));
    transfer.reset();
  }
}

// D-35: pages are saved and loaded while graphs of another stream write and read others.
TEST_F(TransferGpuTest, BugD35CopiesBesideGraphsOfAnotherStream) {
  for (IoBackend io : {IoBackend::kDirect, IoBackend::kKernel}) {
    make_pools(test::geometry(8, 128, 16, PageOrder::kHeadMajor, 4), HostLayout::kPageFirstDirect);
    if (HasFatalFailure()) return;
    config_.io = io;
    auto transfer = create();
    auto scratch = device_->allocate(64 << 20, "a test");
    ASSERT_TRUE(scratch.ok());
    const int64_t half = scratch->bytes() / 2;
    auto graph = compute_->capture("a step", [&] {
      for (int i = 0; i < 10; ++i) {
        compute_->fill(scratch->data(), static_cast<uint8_t>(i), half);
        compute_->copy(scratch->as<char>() + half, scratch->data(), half);
      }
    });
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    for (int round = 0; round < 20; ++round) {
      const auto pages = test::random_pages(20, kHostSlots, kDeviceSlots, round);
      const bool to_host = round % 2 == 0;
      const std::vector<uint8_t> want = expected(pages, to_host);
      for (int i = 0; i < 3; ++i) (*graph)->launch(*compute_);
      Ends ends;
      if (to_host) {
        transfer->save(pages, ends.one());
      } else {
        transfer->load(pages, ends.one());
      }
      for (int i = 0; i < 3; ++i) (*graph)->launch(*compute_);
      const Status status = ends.wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE((to_host ? host_bytes() : device_bytes()) == want) << "round " << round;
    }
    transfer.reset();
  }
}

// Held copies are not beside what is held for, and get on in between.
TEST_F(TransferGpuTest, HoldsAndResumes) {
  make_pools(test::geometry(8, 128, 64, PageOrder::kHeadMajor, 8), HostLayout::kLayerFirst);
  config_.io = IoBackend::kKernel;
  config_.tuning.chunk_bytes = 1 << 20;
  auto transfer = create();
  const auto pages = test::random_pages(24, kHostSlots, kDeviceSlots, 3);
  const std::vector<uint8_t> want = expected(pages, true);
  Ends ends;
  transfer->save(pages, ends.one());
  auto scratch = device_->allocate(64 << 20, "a test");
  ASSERT_TRUE(scratch.ok());
  for (int step = 0; step < 40; ++step) {
    transfer->hold();
    compute_->fill(scratch->data(), 1, scratch->bytes());
    transfer->resume();
  }
  const Status status = ends.wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(host_bytes() == want);
  transfer.reset();
}

// D-33: where the host has several NUMA nodes, the pool lies on the GPU's.
TEST_F(TransferGpuTest, BugD33HostPoolLiesOnTheNodeOfTheGpu) {
  make_pools(test::geometry(8, 128, 64, PageOrder::kHeadMajor, 8), HostLayout::kLayerFirst);
  const int32_t node = device_->info().numa_node;
  if (node < 0) GTEST_SKIP() << "one NUMA node";
  EXPECT_EQ(test::numa_node_of(host_->view().base), node);
  EXPECT_EQ(test::numa_node_of(host_->view().base + host_->bytes() - 1), node);
}

// Small enough for compute-sanitizer: every path of the kernels.
TEST_F(TransferGpuTest, Sanitized) {
  for (const KvGeometry& g :
       {test::geometry(2, 64, 4, PageOrder::kHeadMajor, 2), test::latent(132, 1, 2)})
    for (HostLayout layout : {HostLayout::kLayerFirst, HostLayout::kPageFirst}) {
      make_pools(g, layout);
      if (HasFatalFailure()) return;
      config_.io = IoBackend::kKernel;
      expect_round_trip("sanitized", 3, 5);
    }
}

}  // namespace
}  // namespace attune::kv
