// Which cached page to give up first. The prefix index says what may be evicted; a policy orders
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kv/layout/layout.h"

namespace attune::kv {

// The pages a policy hears of are those of the prefix index. Thread-compatible; every call is
// O(log pages). Equal calls give equal victims.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The page was put into the index, matched, or let go by a request. `now` grows with each use.
  virtual void on_use(PageId page, uint64_t now) = 0;
  // It is a leaf that nobody holds: it may be evicted from now on.
  virtual void on_evictable(PageId page) = 0;
  // It may no longer be evicted: held again, has a child, or is gone.
  virtual void on_kept(PageId page) = 0;
  // The next to give up; nothing when nothing is evictable. Does not remove it.
  virtual std::optional<PageId> victim() const = 0;
};

// Least recently used first. `max_pages`: page ids are in [0, max_pages).
std::unique_ptr<EvictionPolicy> make_lru_policy(int32_t max_pages);

}  // namespace attune::kv
