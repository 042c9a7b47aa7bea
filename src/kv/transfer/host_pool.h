// The host pool's memory. On a GPU it is pinned: mapped, touched by several threads on the GPU's
// NUMA node, then registered part by part in the background, so that a server is ready before a
// large pool is (D-32).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "attune/status.h"
#include "device/device.h"
#include "kv/layout/host_layout.h"

namespace attune::kv {

// Bytes of host memory that can be pinned now: what is available, less a reserve for the rest of
// the machine. It is half of what the resolver leaves, so that the size that it chose still fits
// once a model was loaded.
int64_t pinnable_bytes();

struct HostPoolConfig {
  KvGeometry geometry;
  HostLayout layout = HostLayout::kLayerFirst;
  int32_t num_slots = 0;
  int32_t threads = 0;     // that touch it; 0: by the machine, 8 at most
  int64_t part_bytes = 0;  // of one registration, a multiple of 4096; 0: by the size
};

class HostPool {
 public:
  // Returns before the memory is pinned. Errors: resource_exhausted, before anything is touched.
  static Result<std::unique_ptr<HostPool>> create(const HostPoolConfig& config,
                                                  device::Device& device);
  ~HostPool();  // stops pinning, and lets go; no copy may be under way
  const HostView& view() const { return view_; }
  int64_t part_bytes() const { return part_bytes_; }  // see TransferConfig; 0: one part
  int64_t bytes() const { return bytes_; }

  // Any thread, as are the next ones. Slots [0, ready_slots()) can be used; grows up to num_slots.
  int32_t ready_slots() const { return ready_slots_.load(std::memory_order_acquire); }
  // Not ok: pinning has stopped for this reason, and ready_slots() stays as it is.
  Status status() const;
  // Blocks until ready_slots() grows no more.
  void wait();

 private:
  HostPool(const HostPoolConfig& config, device::Device& device);
  Status map();
  void plan_parts();
  void touch_parts();
  void pin_parts();
  bool await_touched(size_t i);
  Status pin(size_t i);
  int32_t pinned_slots() const;
  int64_t part_size(int64_t part) const;
  void finish(Status status);

  const HostPoolConfig config_;
  device::Device& device_;
  HostView view_;
  int64_t bytes_ = 0, part_bytes_ = 0;
  int64_t stripe_bytes_ = 0, slot_bytes_ = 0;  // slot s is at s * slot_bytes of every stripe
  std::vector<int64_t> order_;                 // parts, in the order in which slots become whole
  std::vector<bool> pinned_;                   // by part
  std::atomic<size_t> next_touch_{0};
  std::atomic<int32_t> ready_slots_{0};
  std::atomic<bool> stop_{false};

  mutable std::mutex mutex_;
  std::condition_variable cv_;
  std::vector<bool> touched_;  // by place in order_
  bool finished_ = false;
  Status status_;
  std::vector<std::thread> threads_;
};

}  // namespace attune::kv
