#include "kv/policy/eviction_policy.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"

namespace attune::kv {
namespace {

// Lowest rank first, then least recent. A leaf may become evictable long after its last use (when
// its child goes), so the order is a sorted set and not a list.
class RankedPolicy : public EvictionPolicy {
 public:
  explicit RankedPolicy(int32_t max_pages) : pages_(static_cast<size_t>(max_pages)) {}

  void on_use(PageId page, uint64_t now, int32_t priority) override {
    place(page, rank_after_use(at(page), priority), now);
    at(page).used = true;
  }
  void on_let_go(PageId page, uint64_t now) override { place(page, at(page).rank, now); }
  void on_evictable(PageId page) override {
    at(page).evictable = true;
    order_.insert(key(page));
  }
  void on_kept(PageId page) override {
    if (std::exchange(at(page).evictable, false)) order_.erase(key(page));
  }
  void on_gone(PageId page) override {
    on_kept(page);
    at(page) = {};
  }
  std::optional<PageId> victim() const override {
    if (order_.empty()) return std::nullopt;
    return std::get<PageId>(*order_.begin());
  }

 protected:
  struct Page {
    int64_t rank = 0;
    uint64_t last = 0;
    bool used = false, evictable = false;
  };
  virtual int64_t rank_after_use(const Page& page, int32_t priority) const = 0;

  using Key = std::tuple<int64_t, uint64_t, PageId>;
  Key key(PageId page) const {
    const Page& p = pages_[static_cast<size_t>(page.value)];
    return {p.rank, p.last, page};
  }
  Page& at(PageId page) { return pages_[static_cast<size_t>(page.value)]; }
  void place(PageId page, int64_t rank, uint64_t last) {
    Page& p = at(page);
    if (p.evictable) order_.erase(key(page));
    p.rank = rank;
    p.last = last;
    if (p.evictable) order_.insert(key(page));
  }

 private:
  std::vector<Page> pages_;
  std::set<Key> order_;  // of what is evictable
};

class LruPolicy final : public RankedPolicy {
  using RankedPolicy::RankedPolicy;
  int64_t rank_after_use(const Page&, int32_t) const override { return 0; }
};

class LfuPolicy final : public RankedPolicy {
  using RankedPolicy::RankedPolicy;
  int64_t rank_after_use(const Page& page, int32_t) const override { return page.rank + 1; }
};

class PriorityPolicy final : public RankedPolicy {
  using RankedPolicy::RankedPolicy;
  int64_t rank_after_use(const Page& page, int32_t priority) const override {
    return page.used ? std::max<int64_t>(page.rank, priority) : priority;
  }
};

// Rank 1 is the protected segment. It bounds all of its pages, evictable or not.
class SlruPolicy final : public RankedPolicy {
 public:
  explicit SlruPolicy(int32_t max_pages)
      : RankedPolicy(max_pages), most_(static_cast<size_t>(max_pages) * 4 / 5) {}

  void on_use(PageId page, uint64_t now, int32_t priority) override {
    protected_.erase(key(page));
    RankedPolicy::on_use(page, now, priority);
    if (at(page).rank == 0) return;
    protected_.insert(key(page));
    if (protected_.size() <= most_) return;
    const PageId oldest = std::get<PageId>(*protected_.begin());
    protected_.erase(protected_.begin());
    place(oldest, 0, now);
  }
  void on_let_go(PageId page, uint64_t now) override {
    const bool kept = protected_.erase(key(page)) > 0;
    RankedPolicy::on_let_go(page, now);
    if (kept) protected_.insert(key(page));
  }
  void on_gone(PageId page) override {
    protected_.erase(key(page));
    RankedPolicy::on_gone(page);
  }

 private:
  int64_t rank_after_use(const Page& page, int32_t) const override { return page.used ? 1 : 0; }

  const size_t most_;
  std::set<Key> protected_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru_policy(int32_t max_pages) {
  return std::make_unique<LruPolicy>(max_pages);
}

Result<std::unique_ptr<EvictionPolicy>> make_eviction_policy(std::string_view name,
                                                             int32_t max_pages) {
  std::unique_ptr<EvictionPolicy> policy;
  if (name == "lru") policy = std::make_unique<LruPolicy>(max_pages);
  if (name == "lfu") policy = std::make_unique<LfuPolicy>(max_pages);
  if (name == "slru") policy = std::make_unique<SlruPolicy>(max_pages);
  if (name == "priority") policy = std::make_unique<PriorityPolicy>(max_pages);
  if (!policy)
    return invalid_argument(base::cat("--radix-eviction-policy ", name,
                                      ": there is none of this name; use lru, lfu, slru or "
                                      "priority"));
  return policy;
}

}  // namespace attune::kv
