// Makes the copies that the scheduler asks for: between device and host pool, and to and from
// storage. The engine's thread, except where it says so.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "attune/engine.h"
#include "kv/tier/kv_tier.h"
#include "kv/transfer/host_pool.h"
#include "kv/transfer/transfer.h"
#include "sched/cache_work.h"

namespace attune::engine {

// How long a request waits for pages from storage: base + per_ki_token * tokens / 1024, at most
// `most`; seconds.
struct PrefetchWait {
  double base = 0, per_ki_token = 0, most = 0;
};

struct CopiesConfig {
  kv::KvGeometry geometry;
  std::string io_backend, mem_layout, write_policy, storage_prefetch_policy;  // for stats
  std::optional<PrefetchWait> prefetch_wait;                                  // kTimeout
};

class Copies {
 public:
  using Clock = std::chrono::steady_clock;
  // What a copy answers; posted to the engine's thread.
  struct Answers {
    std::function<void(std::vector<uint64_t> ops, bool ok)> copied;
    std::function<void(uint64_t op, int32_t pages)> matched;
  };
  // `tier` may be null.
  Copies(const CopiesConfig& config, std::unique_ptr<kv::HostPool> host,
         std::unique_ptr<kv::Transfer> transfer, std::unique_ptr<kv::KvTier> tier)
      : config_(config),
        host_(std::move(host)),
        tier_(std::move(tier)),
        transfer_(std::move(transfer)) {}

  // A step's loads under way.
  class Load {
   public:
    const std::shared_ptr<kv::LayerGate>& gate() const { return gate_; }
    // Waits until nothing of it is copied any more.
    Status wait();

   private:
    friend class Copies;
    std::mutex mutex_;
    std::condition_variable cv_;
    std::optional<Status> ended_;  // under mutex_
    std::shared_ptr<kv::LayerGate> gate_;
  };
  std::shared_ptr<Load> load(std::vector<kv::PageCopy> pages);

  // The answers come on other threads.
  void start(sched::CacheWork work, const Answers& answers);
  void ended(uint64_t op) { reads_.erase(op); }
  void set_alone(bool alone) { transfer_->set_alone(alone); }  // no step is in flight
  kv::KvTier* tier() { return tier_.get(); }                   // any thread
  int32_t host_slots() const { return host_->ready_slots(); }

  // Requests that have waited long enough for storage; each once.
  std::vector<RequestId> overdue(Clock::time_point now);
  std::optional<Clock::time_point> next_deadline() const;

  double load_bytes_per_second() const;
  void fill(EngineStats& stats) const;  // any thread

 private:
  void store(sched::CacheWork::Store store, const Answers& answers);
  void fetch(sched::CacheWork::Fetch fetch, const Answers& answers);

  CopiesConfig config_;
  std::unique_ptr<kv::HostPool> host_;
  // Answered by others' threads until they are gone, which is before the host pool is.
  std::unique_ptr<kv::KvTier> tier_;
  std::unique_ptr<kv::Transfer> transfer_;
  std::unordered_map<uint64_t, uint64_t> reads_;  // op -> the tier's number, to cancel it
  std::multimap<Clock::time_point, RequestId> deadlines_;
};

}  // namespace attune::engine
