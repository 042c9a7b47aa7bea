// Decides what goes down and up between the tiers, and keeps every copy's hold on its page until
// the copy has ended. Part of the scheduler: no device, no clock, no I/O; the engine's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "attune/engine.h"
#include "kv/index/prefix_index.h"
#include "sched/cache_work.h"

namespace attune::sched {

class CacheControl {
 public:
  CacheControl(const CacheConfig& config, kv::PagePool& pool, kv::PrefixIndex& index)
      : config_(config), pool_(pool), index_(index) {}

  // The copies to start now, beside the steps.
  CacheWork take_work();
  // The answers to them; an unknown number is ignored.
  void on_copied(uint64_t op, bool ok);
  void on_matched(uint64_t op, int32_t pages);
  // Copies under way or about to be.
  bool busy() const {
    return !copies_.empty() || !work_.empty() || (!stopped_ && index_.wants_copies());
  }
  // Of these, those that go down: they hold pages of the index.
  bool holds_pages() const {
    return saves_ > 0 || stores_ > 0 || (!stopped_ && index_.wants_copies());
  }
  // Every page without a copy further down shall have one, as far as there is room: before a stop.
  void save_everything() { index_.want_all(); }
  void forget_stored() { index_.forget_stored(); }  // storage has been emptied
  void stop() { stopped_ = true; }                  // no more copies begin

  // Looks for a new request's pages in storage. `tokens`: those that need not be computed if found.
  void prefetch(RequestId request, std::span<const TokenId> tokens, const kv::PrefixSalt& salt);
  // By the policy.
  bool may_admit(RequestId request) const;
  // Its prefetch ends with what has come.
  void cut_prefetch(RequestId request);
  // Pages of it that came from storage so far.
  int32_t fetched_pages(RequestId request) const;
  void forget(RequestId request);

  // Whether `pages` of the device can be had without loss, or it is no use to wait until they can.
  bool may_take(int32_t pages);
  // Whether pages that lie in the host are loaded; else they are computed again.
  bool worth_loading(int32_t pages) const;
  void count_load(int32_t pages, bool loaded);
  void count_failed_load() { ++counters_.failed_loads; }
  void set_rates(const CacheRates& rates) { rates_ = rates; }
  void count(HiCacheStats& stats) const;

 private:
  struct Prefetch {
    std::vector<TokenId> tokens;  // whole pages, from the first on
    kv::PrefixSalt salt;
    int32_t first = 0;                    // pages that were there already
    std::vector<kv::PageIdentity> pages;  // of those from `first` on
    int32_t issued = 0, inserted = 0;
    std::set<uint64_t> under_way;              // copies
    std::map<int32_t, kv::OwnedPage> arrived;  // behind one that has not
    bool matched = false, stopped = false;
  };
  struct Copy {
    kv::PageTransfer transfer;
    kv::OwnedPage fetched;
    RequestId request = 0;  // a fetch's or a match's
    int32_t page = 0;       // of its Prefetch
  };
  using Prefetches = std::unordered_map<RequestId, Prefetch>;

  int32_t ahead() const;
  void pump(RequestId request, Prefetch& p);
  void arrived(uint64_t op, Copy copy, bool ok);
  void end_if_over(Prefetches::iterator it);
  void cancel_fetches(const Prefetch& p);

  CacheConfig config_;
  kv::PagePool& pool_;
  kv::PrefixIndex& index_;
  CacheRates rates_;
  CacheWork work_;
  std::unordered_map<uint64_t, Copy> copies_;
  Prefetches prefetches_;
  std::unordered_map<RequestId, int32_t> fetched_;  // pages, of requests not yet admitted
  uint64_t ops_ = 0;
  int32_t saves_ = 0, stores_ = 0;
  int32_t failed_saves_ = 0;  // in a row
  bool stopped_ = false;
  int64_t prefetching_ = 0;  // pages asked for
  HiCacheStats counters_;
};

}  // namespace attune::sched
