#include "kv/transfer/host_pool.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>

#include "base/log.h"
#include "device/host_memory.h"

namespace attune::kv {
namespace {

using base::cat;

constexpr int64_t kPage = 4096, kLeastPart = 16 << 20, kMostPart = 512 << 20;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// One thread's share of a pool's touching; a byte of each page is enough, and the kernel clears.
void touch(char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPage) static_cast<volatile char*>(from)[at] = 0;
}

}  // namespace

int64_t pinnable_bytes() {
  const device::HostMemory memory = device::host_memory();
  return std::max<int64_t>(0, memory.available - std::min(int64_t{5} << 30, memory.total / 20));
}

HostPool::HostPool(const HostPoolConfig& config, device::Device& device)
    : config_(config), device_(device) {
  bytes_ = config.geometry.page_bytes() * config.num_slots;
  const bool layer_first = config.layout == HostLayout::kLayerFirst;
  slot_bytes_ = layer_first ? config.geometry.piece_bytes() : config.geometry.page_bytes();
  stripe_bytes_ = slot_bytes_ * config.num_slots;
}

Result<std::unique_ptr<HostPool>> HostPool::create(const HostPoolConfig& config,
                                                   device::Device& device) {
  if (config.num_slots < 1) return invalid_argument("a host pool of no pages");
  std::unique_ptr<HostPool> pool(new HostPool(config, device));
  ATTUNE_RETURN_IF_ERROR(pool->map());
  if (device.info().kind ==
      device::Kind::kCpu) {  // any memory will do; pages come as they are used
    pool->ready_slots_ = config.num_slots;
    pool->finished_ = true;
    return pool;
  }
  pool->plan_parts();
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  const int threads = config.threads > 0 ? config.threads : std::min(8, cores);
  for (int i = 0; i < threads; ++i)
    pool->threads_.emplace_back([p = pool.get()] { p->touch_parts(); });
  pool->threads_.emplace_back([p = pool.get()] { p->pin_parts(); });
  return pool;
}

Status HostPool::map() {
  if (device_.info().kind == device::Kind::kCuda && bytes_ > pinnable_bytes())
    return resource_exhausted(cat("the host pool of ", bytes_ >> 20, " MiB is more than the ",
                                  pinnable_bytes() >> 20,
                                  " MiB of host memory that can be pinned: lower --hicache-size or "
                                  "--hicache-ratio"));
  void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return resource_exhausted(cat("cannot map ", bytes_,
                                  " bytes for the host pool: ", std::strerror(errno),
                                  ": lower --hicache-size or --hicache-ratio"));
  view_ = make_host_view(config_.geometry, config_.layout, at, config_.num_slots);
  madvise(at, bytes_, MADV_HUGEPAGE);
  const int32_t node = device_.info().numa_node;
  if (node < 0 || node >= 64) return {};
  const unsigned long nodes = 1ul << node;
  // Preferred, not forced: a pool in two halves is better than none.
  if (syscall(SYS_mbind, at, bytes_, MPOL_PREFERRED, &nodes, 65, 0) != 0)
    base::log_warning("the host pool may lie far from the GPU, whose NUMA node is ", node,
                      ": mbind: ", std::strerror(errno));
  return {};
}

HostPool::~HostPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  cv_.notify_all();
  for (std::thread& t : threads_) t.join();
  for (size_t part = 0; part < pinned_.size(); ++part)
    if (pinned_[part]) device_.unpin(view_.base + static_cast<int64_t>(part) * part_bytes_);
  if (view_.base) munmap(view_.base, bytes_);
}

// A slot has a place in every stripe: the first parts of all stripes come first.
void HostPool::plan_parts() {
  part_bytes_ = config_.part_bytes;
  if (part_bytes_ == 0)
    part_bytes_ = ceil_div(std::clamp(stripe_bytes_ / 8, kLeastPart, kMostPart), kPage) * kPage;
  order_.resize(ceil_div(bytes_, part_bytes_));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  const auto place = [&](int64_t part) {
    const int64_t offset = part * part_bytes_ % stripe_bytes_;
    return offset + part_bytes_ > stripe_bytes_ ? 0 : offset / part_bytes_;  // 0: in two stripes
  };
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int64_t a, int64_t b) { return place(a) < place(b); });
  pinned_.resize(order_.size());
  touched_.resize(order_.size());
}

int64_t HostPool::part_size(int64_t part) const {
  return std::min(part_bytes_, bytes_ - part * part_bytes_);
}

void HostPool::touch_parts() {
  for (;;) {
    const size_t i = next_touch_++;
    if (i >= order_.size() || stop_) return;
    touch(view_.base + order_[i] * part_bytes_, part_size(order_[i]));
    {
      std::lock_guard lock(mutex_);
      touched_[i] = true;
    }
    cv_.notify_all();
  }
}

bool HostPool::await_touched(size_t i) {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return touched_[i] || stop_; });
  return !stop_;
}

Status HostPool::pin(size_t i) {
  const int64_t part = order_[i];
  const Status status = device_.pin(view_.base + part * part_bytes_, part_size(part));
  if (status.ok()) {
    pinned_[part] = true;
    return {};
  }
  return {status.code(), cat("the host pool stays at ", ready_slots(), " of ", config_.num_slots,
                             " pages: ", status.message(),
                             ": it fits when --hicache-size or --hicache-ratio is lowered")};
}

// Slots that every stripe has pinned, from the first on.
int32_t HostPool::pinned_slots() const {
  int64_t slots = config_.num_slots;
  for (int64_t begin = 0; begin < bytes_; begin += stripe_bytes_)
    for (int64_t at = begin; at < begin + stripe_bytes_;) {
      const int64_t part = at / part_bytes_;
      if (!pinned_[part]) {
        slots = std::min(slots, (at - begin) / slot_bytes_);
        break;
      }
      at = (part + 1) * part_bytes_;
    }
  return static_cast<int32_t>(slots);
}

void HostPool::pin_parts() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto told = start;
  int64_t bytes = 0;
  for (size_t i = 0; i < order_.size(); ++i) {
    if (!await_touched(i)) return finish(cancelled("the host pool is closed"));
    if (const Status status = pin(i); !status.ok()) return finish(status);
    ready_slots_.store(pinned_slots(), std::memory_order_release);
    bytes += part_size(order_[i]);
    if (Clock::now() - told < std::chrono::seconds(2)) continue;
    told = Clock::now();
    base::log_info("host pool: ", bytes >> 20, " of ", bytes_ >> 20, " MiB pinned");
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  base::log_info("host pool: ", bytes_ >> 20, " MiB pinned in ", seconds, " s");
  finish({});
}

void HostPool::finish(Status status) {
  if (!status.ok() && status.code() != Code::kCancelled) base::log_warning(status.message());
  {
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
    finished_ = true;
  }
  cv_.notify_all();
}

Status HostPool::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void HostPool::wait() {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return finished_; });
}

}  // namespace attune::kv
