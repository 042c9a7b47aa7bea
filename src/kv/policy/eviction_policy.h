// Which cached page to give up first. The prefix index says what may be evicted; a policy orders
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "attune/status.h"
#include "kv/layout/layout.h"

namespace attune::kv {

// The pages a policy hears of are those of the prefix index. Thread-compatible; every call is
// O(log pages). Equal calls give equal victims.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The page was put into the index, or matched, for a request of this priority (higher is kept
  // longer). `now` never falls.
  virtual void on_use(PageId page, uint64_t now, int32_t priority = 0) = 0;
  // A request let it go, or it was fetched ahead of its use: as recent as now, but no use.
  virtual void on_let_go(PageId page, uint64_t now) = 0;
  // It is a leaf that nobody holds: it may be evicted from now on.
  virtual void on_evictable(PageId page) = 0;
  // It may no longer be evicted: held again, or has a child.
  virtual void on_kept(PageId page) = 0;
  // It left the index. The next use of this id is another page's first.
  virtual void on_gone(PageId page) = 0;
  // The next to give up; nothing when nothing is evictable. Does not remove it.
  virtual std::optional<PageId> victim() const = 0;
};

// --radix-eviction-policy. `max_pages`: page ids are in [0, max_pages). Equals go by least recent
// use, then by page id.
//   lru       least recently used first
//   lfu       fewest uses first
//   slru      segmented LRU (Karedla, Love, Wherry: "Caching strategies to improve disk system
//             performance", IEEE Computer 1994): pages used once before those used again. The
//             latter are at most four fifths of max_pages; the least recent above that counts as
//             used once, and just now.
//   priority  lowest priority first; a page has the highest of its requests'
// Errors: invalid_argument, another name.
Result<std::unique_ptr<EvictionPolicy>> make_eviction_policy(std::string_view name,
                                                             int32_t max_pages);
std::unique_ptr<EvictionPolicy> make_lru_policy(int32_t max_pages);

}  // namespace attune::kv
