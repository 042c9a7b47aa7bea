#include <set>
#include <utility>
#include <vector>

#include "kv/policy/eviction_policy.h"

namespace attune::kv {
namespace {

// A leaf may become evictable long after its last use (when its child goes), so the order is a
// sorted set and not a list.
class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(int32_t max_pages) : pages_(static_cast<size_t>(max_pages)) {}

  void on_use(PageId page, uint64_t now) override {
    Use& use = at(page);
    if (use.evictable) order_.erase({use.last, page});
    use.last = now;
    if (use.evictable) order_.insert({now, page});
  }
  void on_evictable(PageId page) override {
    Use& use = at(page);
    use.evictable = true;
    order_.insert({use.last, page});
  }
  void on_kept(PageId page) override {
    Use& use = at(page);
    if (std::exchange(use.evictable, false)) order_.erase({use.last, page});
  }
  std::optional<PageId> victim() const override {
    if (order_.empty()) return std::nullopt;
    return order_.begin()->second;
  }

 private:
  struct Use {
    uint64_t last = 0;
    bool evictable = false;
  };
  Use& at(PageId page) { return pages_[static_cast<size_t>(page.value)]; }

  std::vector<Use> pages_;
  std::set<std::pair<uint64_t, PageId>> order_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru_policy(int32_t max_pages) {
  return std::make_unique<LruPolicy>(max_pages);
}

}  // namespace attune::kv
