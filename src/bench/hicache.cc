#include "bench/hicache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "base/log.h"

namespace attune::bench {
namespace {

using base::cat;
using kv::DeviceSlot;
using kv::HostSlot;
using kv::PageCopy;

constexpr int32_t kLayers = 8, kHeads = 8, kDim = 128, kTokenBytes = 2 * kHeads * kDim * 2;
constexpr int64_t kGpuCallBytes = 32 << 20, kCpuCallBytes = 1 << 20, kSmallBytes = 16 << 10,
                  kReadBytes = int64_t{1} << 30;
constexpr int32_t kReadCopies = 3, kCounters = 4096, kReadsAtOnce = 20;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

kv::KvGeometry geometry(int64_t piece_bytes) {
  return {
      .layer = {.kv_heads = kHeads, .k_dim = kDim, .v_dim = kDim, .dtype = tensor::DType::kBF16},
      .layers = kLayers,
      .page_size = static_cast<int32_t>(piece_bytes / kTokenBytes)};
}

// Keeps a transfer busy: a few calls at a time, of pages in random order.
class Pump {
 public:
  Pump(kv::Transfer& transfer, const HicacheCase& what, int32_t slots, int64_t call_bytes)
      : transfer_(transfer), what_(what) {
    pages_ = std::max<int64_t>(1, call_bytes / (kLayers * what.piece_bytes));
    std::mt19937 random(1);
    host_.resize(slots);
    std::iota(host_.begin(), host_.end(), 0);
    device_ = host_;
    std::shuffle(host_.begin(), host_.end(), random);
    std::shuffle(device_.begin(), device_.end(), random);
    thread_ = std::thread([this] { loop(); });
  }
  ~Pump() { stop(); }
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    cv_.notify_all();
    if (thread_.joinable()) thread_.join();
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] { return under_way_ == 0; });
  }
  Status status() {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  void loop() {
    constexpr int kAtOnce = 6;
    std::unique_lock lock(mutex_);
    for (size_t call = 0;; ++call) {
      const bool save = what_.save && (!what_.load || call % 2 == 0);
      cv_.wait(lock, [&] { return stop_ || ways_[save] < kAtOnce / 2; });
      if (stop_ || !status_.ok()) return;
      ++under_way_;
      ++ways_[save];
      lock.unlock();
      const auto done = [this, save](Status status) {
        std::lock_guard inner(mutex_);
        if (status_.ok()) status_ = std::move(status);
        --under_way_;
        --ways_[save];
        cv_.notify_all();
      };
      if (save) {
        transfer_.save(next(), done);
      } else {
        transfer_.load(next(), done);
      }
      lock.lock();
    }
  }
  std::vector<PageCopy> next() {
    std::vector<PageCopy> pages(static_cast<size_t>(pages_));
    for (PageCopy& page : pages) {
      page = {HostSlot(host_[at_]), DeviceSlot(device_[at_])};
      at_ = (at_ + 1) % host_.size();
    }
    return pages;
  }

  kv::Transfer& transfer_;
  const HicacheCase what_;
  int64_t pages_;
  std::vector<int32_t> host_, device_;
  size_t at_ = 0;
  std::mutex mutex_;
  std::condition_variable cv_;
  int under_way_ = 0, ways_[2] = {0, 0};
  bool stop_ = false;
  Status status_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HicacheBench>> HicacheBench::create(device::Device& device,
                                                           int64_t pool_bytes, double seconds,
                                                           const std::string& beside) {
  std::unique_ptr<HicacheBench> b(new HicacheBench(device));
  b->seconds_ = seconds;
  // Slots of the smallest page; every case lays its own over the same memory.
  const kv::KvGeometry least = geometry(kTokenBytes);
  const auto slots = static_cast<int32_t>(pool_bytes / least.page_bytes());
  b->pool_bytes_ = slots * least.page_bytes();
  ATTUNE_ASSIGN_OR_RETURN(
      b->host_,
      kv::HostPool::create(
          {.geometry = least, .layout = kv::HostLayout::kPageFirstDirect, .num_slots = slots},
          device));
  ATTUNE_ASSIGN_OR_RETURN(b->pool_, device.allocate(b->pool_bytes_, "the device pool"));
  b->compute_ = device.create_stream();
  if (device.info().kind == device::Kind::kCuda && device.info().sm >= 90)
    b->reader_ = ops::cuda_reader();
  if (b->reader_) {
    ATTUNE_ASSIGN_OR_RETURN(b->read_, device.allocate(kReadBytes * kReadCopies, "what is read"));
    ATTUNE_ASSIGN_OR_RETURN(b->counters_, device.allocate(4 * kCounters, "counters"));
    ATTUNE_ASSIGN_OR_RETURN(b->small_pinned_, device.allocate_pinned(kSmallBytes, "a small copy"));
    ATTUNE_ASSIGN_OR_RETURN(b->small_device_, device.allocate(kSmallBytes, "a small copy"));
    b->reading_ = device.create_stream();
    b->reading_->set_pdl(false);  // else two of its CTAs leave no room on a multiprocessor
    b->small_ = device.create_stream();
  }
  if (!beside.empty()) {
    if (!b->reader_)
      return unsupported("--beside: copies are timed beside a kernel on sm_90 alone");
    ATTUNE_ASSIGN_OR_RETURN(b->decode_, DecodeReader::create(beside, device));
  }
  b->host_->wait();
  ATTUNE_RETURN_IF_ERROR(b->host_->status());
  b->fill_pools();
  return b;
}

// Not zeros, which may move faster than what caches hold.
void HicacheBench::fill_pools() {
  std::mt19937_64 random(1);
  std::vector<uint64_t> some(1 << 20);
  for (uint64_t& word : some) word = random();
  const auto block = static_cast<int64_t>(8 * some.size());
  for (int64_t at = 0; at < pool_bytes_; at += block)
    std::memcpy(host_->view().base + at, some.data(), std::min(block, pool_bytes_ - at));
  compute_->copy(pool_.data(), host_->view().base, std::min(block, pool_bytes_));
  for (int64_t at = block; at < pool_bytes_; at += block)
    compute_->copy(pool_.as<char>() + at, pool_.data(), std::min(block, pool_bytes_ - at));
  compute_->synchronize();
}

double HicacheBench::reader_seconds(double for_seconds) {
  const auto read = [&] {
    if (decode_) return decode_->run();
    for (int i = 0; i < kReadsAtOnce; ++i, ++launches_) {
      const int32_t counter = launches_ % kCounters;
      if (counter == 0) reading_->fill(counters_.data(), 0, counters_.bytes());
      reading_->launch([&] {
        reader_({read_.as<char>() + launches_ % kReadCopies * kReadBytes, kReadBytes,
                 counters_.as<uint32_t>() + counter},
                *reading_);
      });
    }
    reading_->synchronize();
    return kReadsAtOnce;
  };
  read();
  const double start = now();
  int passes = 0;
  while (now() - start < for_seconds) passes += read();
  return (now() - start) / passes;
}

double HicacheBench::read_rate() {
  const int64_t bytes = decode_ ? decode_->bytes() : kReadBytes;
  return reader_ ? static_cast<double>(bytes) / reader_seconds(seconds_) : 0;
}

double HicacheBench::copy_rate(bool save, bool load) {
  constexpr int64_t kBlock = 64 << 20;
  const auto block = [&](char* base, int i) { return base + i * kBlock % (pool_bytes_ / 2); };
  std::unique_ptr<device::Stream> up = device_.create_copy_stream(),
                                  down = device_.create_copy_stream();
  char *host = host_->view().base, *device = pool_.as<char>();
  const double start = now();
  int64_t bytes = 0;
  for (int i = 0; now() - start < seconds_; ++i) {
    if (save) down->copy(block(host, i), block(device, i), kBlock);
    if (load)
      up->copy(block(device, i) + pool_bytes_ / 2, block(host, i) + pool_bytes_ / 2, kBlock);
    bytes += kBlock * (int{save} + int{load});
    if (i % 4 == 3) {
      down->synchronize();
      up->synchronize();
    }
  }
  down->synchronize();
  up->synchronize();
  return static_cast<double>(bytes) / (now() - start);
}

double HicacheBench::small_copy_seconds() {
  std::vector<double> took;
  const double start = now();
  while (now() - start < seconds_ / 2) {
    const double begun = now();
    small_->copy(small_device_.data(), small_pinned_.data(), kSmallBytes);
    small_->synchronize();
    took.push_back(now() - begun);
  }
  const size_t most = took.size() * 99 / 100;
  std::nth_element(took.begin(), took.begin() + most, took.end());
  return took[most];
}

Result<double> HicacheBench::rate(const HicacheCase& what, const std::function<void()>& meanwhile) {
  const kv::KvGeometry g = geometry(what.piece_bytes);
  const auto slots = static_cast<int32_t>(pool_bytes_ / g.page_bytes());
  kv::TransferConfig config{.geometry = g,
                            .host = kv::make_host_view(g, what.layout, host_->view().base, slots),
                            .io = what.io,
                            .bytes_per_second = what.bytes_per_second,
                            .host_part_bytes = host_->part_bytes(),
                            .tuning = what.tuning};
  for (int32_t l = 0; l < kLayers; ++l)
    config.device.push_back(
        kv::make_view(g, pool_.as<char>() + l * g.piece_bytes() * slots, slots));
  ATTUNE_ASSIGN_OR_RETURN(auto transfer, kv::Transfer::create(config, device_, *compute_));
  transfer->set_alone(!meanwhile);
  const bool gpu = device_.info().kind == device::Kind::kCuda;
  Pump pump(*transfer, what, slots, gpu ? kGpuCallBytes : kCpuCallBytes);
  const auto bytes = [&] {
    const kv::TransferStats s = transfer->stats();
    return static_cast<double>(s.saved_bytes + s.loaded_bytes);
  };
  const auto pause = [&](double until) {
    while (now() < until) std::this_thread::yield();
  };
  pause(now() + 0.02);
  const double start = now(), from = bytes();
  if (meanwhile) meanwhile();
  pause(start + seconds_);
  const double rate = (bytes() - from) / (now() - start);
  pump.stop();
  ATTUNE_RETURN_IF_ERROR(pump.status());
  return rate;
}

Result<HicacheRow> HicacheBench::measure(const HicacheCase& what) {
  HicacheRow row{.what = what};
  ATTUNE_ASSIGN_OR_RETURN(row.alone, rate(what, nullptr));
  if (!reader_) return row;
  const double base = reader_seconds(seconds_ / 3);
  double beside = 0;
  ATTUNE_ASSIGN_OR_RETURN(row.beside, rate(what, [&] { beside = reader_seconds(seconds_); }));
  row.slowdown = beside / base;
  ATTUNE_RETURN_IF_ERROR(rate(what, [&] { row.small_copy = small_copy_seconds(); }).status());
  return row;
}

namespace {

const char* way_name(const HicacheCase& c) {
  return c.save && c.load ? "both" : c.save ? "device to host" : "host to device";
}
const char* io_name(kv::IoBackend io) {
  return io == kv::IoBackend::kDirect ? "direct" : "kernel";
}

Result<std::vector<kv::IoBackend>> io_of(const std::vector<std::string>& names) {
  if (names.empty()) return std::vector{kv::IoBackend::kDirect, kv::IoBackend::kKernel};
  std::vector<kv::IoBackend> all;
  for (const std::string& name : names) {
    if (name != "direct" && name != "kernel")
      return invalid_argument(cat("--io: '", name, "' is neither direct nor kernel"));
    all.push_back(name == "direct" ? kv::IoBackend::kDirect : kv::IoBackend::kKernel);
  }
  return all;
}

Result<std::vector<kv::HostLayout>> layouts_of(const std::vector<std::string>& names) {
  using enum kv::HostLayout;
  if (names.empty()) return std::vector{kLayerFirst, kPageFirst, kPageFirstDirect};
  std::vector<kv::HostLayout> all;
  for (const std::string& name : names) {
    const auto layout = kv::parse_host_layout(name);
    if (!layout)
      return invalid_argument(
          cat("--layouts: '", name, "' is not layer_first, page_first or page_first_direct"));
    all.push_back(*layout);
  }
  return all;
}

}  // namespace

Status run_hicache(const HicacheConfig& config, device::Device& device,
                   const std::function<void(const HicacheRow&)>& told) {
  ATTUNE_ASSIGN_OR_RETURN(const auto ios, io_of(config.io));
  ATTUNE_ASSIGN_OR_RETURN(const auto layouts, layouts_of(config.layouts));
  for (int32_t kib : config.pieces)
    if (kib % (kTokenBytes >> 10) != 0)
      return invalid_argument(
          cat("--pieces: ", kib, " KiB is no multiple of a token's ", kTokenBytes >> 10, " KiB"));
  ATTUNE_ASSIGN_OR_RETURN(
      const auto bench,
      HicacheBench::create(device, int64_t{config.pool_mib} << 20, config.seconds, config.beside));
  for (kv::IoBackend io : ios)
    for (kv::HostLayout layout : layouts)
      for (int32_t kib : config.pieces)
        for (int way = 1; way <= 3; ++way) {
          if (io == kv::IoBackend::kDirect && layout == kv::HostLayout::kPageFirst) continue;
          ATTUNE_ASSIGN_OR_RETURN(const HicacheRow row,
                                  bench->measure({.save = (way & 1) != 0,
                                                  .load = (way & 2) != 0,
                                                  .io = io,
                                                  .layout = layout,
                                                  .piece_bytes = int64_t{kib} << 10,
                                                  .bytes_per_second = config.bytes_per_second}));
          told(row);
        }
  return {};
}

std::string hicache_header() {
  return "io      layout             piece KiB  way             GB/s alone  beside  reader slower  "
         "16 KiB copy us";
}

std::string to_line(const HicacheRow& row) {
  char line[160];
  int n = std::snprintf(line, sizeof line, "%-7s %-18s %9lld  %-14s %11.1f", io_name(row.what.io),
                        std::string(kv::host_layout_name(row.what.layout)).c_str(),
                        static_cast<long long>(row.what.piece_bytes >> 10), way_name(row.what),
                        row.alone / 1e9);
  if (row.slowdown > 0)
    std::snprintf(line + n, sizeof line - n, " %7.1f %13.3fx %15.0f", row.beside / 1e9,
                  row.slowdown, row.small_copy * 1e6);
  return line;
}

std::string to_json(const HicacheRow& row, const device::DeviceInfo& device) {
  std::string beside = "null, \"reader_slowdown\": null, \"small_copy_us\": null";
  if (row.slowdown > 0)
    beside = cat(row.beside / 1e9, ", \"reader_slowdown\": ", row.slowdown,
                 ", \"small_copy_us\": ", row.small_copy * 1e6);
  return cat("{\"device\": \"", device.name, "\", \"io\": \"", io_name(row.what.io),
             "\", \"layout\": \"", kv::host_layout_name(row.what.layout),
             "\", \"piece_bytes\": ", row.what.piece_bytes, ", \"way\": \"", way_name(row.what),
             "\", \"gb_per_s_alone\": ", row.alone / 1e9, ", \"gb_per_s_beside\": ", beside, "}");
}

}  // namespace attune::bench
