#include "kv/policy/eviction_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace attune::kv {
namespace {

std::unique_ptr<EvictionPolicy> make(const std::string& name, int32_t pages) {
  auto policy = make_eviction_policy(name, pages);
  EXPECT_TRUE(policy.ok());
  return std::move(*policy);
}

TEST(EvictionPolicy, AnotherNameIsRefused) {
  const Status status = make_eviction_policy("fifo", 4).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("lru, lfu, slru or priority"), std::string::npos);
}

TEST(LruPolicy, LeastRecentlyUsedFirst) {
  auto lru = make_lru_policy(4);
  EXPECT_FALSE(lru->victim());
  for (int32_t i = 0; i < 4; ++i) lru->on_use(PageId(i), uint64_t(10 - i));
  lru->on_evictable(PageId(0));
  lru->on_evictable(PageId(2));
  lru->on_evictable(PageId(1));
  EXPECT_EQ(lru->victim(), PageId(2));
  EXPECT_EQ(lru->victim(), PageId(2));  // looking does not take
  lru->on_use(PageId(2), 20);           // also while it is evictable
  EXPECT_EQ(lru->victim(), PageId(1));
  lru->on_kept(PageId(1));
  EXPECT_EQ(lru->victim(), PageId(0));
  lru->on_kept(PageId(0));
  lru->on_kept(PageId(0));  // twice is harmless
  EXPECT_EQ(lru->victim(), PageId(2));
  lru->on_kept(PageId(2));
  EXPECT_FALSE(lru->victim());
}

TEST(LruPolicy, EqualTimesAreOrderedByPage) {
  auto lru = make_lru_policy(3);
  for (const int32_t i : {2, 0, 1}) {
    lru->on_use(PageId(i), 1);
    lru->on_evictable(PageId(i));
  }
  EXPECT_EQ(lru->victim(), PageId(0));
}

TEST(LfuPolicy, FewestUsesFirstAndLettingGoIsNone) {
  auto lfu = make("lfu", 2);
  lfu->on_use(PageId(0), 1);
  lfu->on_use(PageId(0), 2);
  lfu->on_use(PageId(1), 3);
  for (uint64_t now = 4; now < 8; ++now) lfu->on_let_go(PageId(1), now);
  for (int32_t i : {0, 1}) lfu->on_evictable(PageId(i));
  EXPECT_EQ(lfu->victim(), PageId(1));
  lfu->on_use(PageId(1), 9);  // as often, and more recently
  EXPECT_EQ(lfu->victim(), PageId(0));
}

// An id is used again for another page: what was known of the old one must not keep the new one.
TEST(EvictionPolicy, APageThatLeftIsForgotten) {
  for (const std::string name : {"lfu", "slru", "priority"}) {
    auto policy = make(name, 10);
    for (uint64_t now = 1; now < 4; ++now) policy->on_use(PageId(7), now, 5);
    policy->on_evictable(PageId(7));
    policy->on_gone(PageId(7));
    EXPECT_FALSE(policy->victim()) << name;
    policy->on_use(PageId(7), 4, 0);
    policy->on_use(PageId(1), 5, 1);
    policy->on_evictable(PageId(7));
    policy->on_evictable(PageId(1));
    EXPECT_EQ(policy->victim(), PageId(7)) << name;
  }
}

// A scan of pages that are used once passes by those that were used again; plain LRU would give
// these up.
TEST(SlruPolicy, AScanDoesNotPushOutWhatIsUsedAgain) {
  for (const std::string name : {"lru", "slru"}) {
    auto policy = make(name, 10);
    uint64_t now = 0;
    for (int round = 0; round < 2; ++round) policy->on_use(PageId(0), ++now);
    policy->on_evictable(PageId(0));
    for (int32_t i = 1; i < 10; ++i) {
      policy->on_use(PageId(i), ++now);
      policy->on_evictable(PageId(i));
    }
    EXPECT_EQ(policy->victim(), PageId(name == "lru" ? 0 : 1));
  }
}

TEST(SlruPolicy, TheProtectedPartIsBounded) {
  auto policy = make("slru", 5);  // 4 may be protected
  uint64_t now = 0;
  for (int32_t i = 0; i < 5; ++i) {
    policy->on_use(PageId(i), ++now);
    policy->on_use(PageId(i), ++now);
    policy->on_evictable(PageId(i));
  }
  EXPECT_EQ(policy->victim(), PageId(0));  // the fifth pushed the least recent out
  policy->on_use(PageId(0), ++now);        // and it comes back for the next one
  EXPECT_EQ(policy->victim(), PageId(1));
}

// The same orders, by walking a list.
class Naive {
 public:
  Naive(std::string name, int32_t pages)
      : name_(std::move(name)), most_(static_cast<size_t>(pages) * 4 / 5), pages_(size_t(pages)) {}

  void use(int32_t id, uint64_t now, int32_t priority) {
    Page& p = pages_[size_t(id)];
    ++p.uses;
    p.last = now;
    p.priority = p.uses == 1 ? priority : std::max(p.priority, priority);
    if (p.uses == 1 || name_ != "slru") return;
    p.again = true;
    std::vector<int32_t> again;
    for (int32_t i = 0; i < int32_t(pages_.size()); ++i)
      if (pages_[size_t(i)].again) again.push_back(i);
    if (again.size() <= most_) return;
    Page& oldest = pages_[size_t(*std::ranges::min_element(
        again, {}, [&](int32_t i) { return std::pair(pages_[size_t(i)].last, i); }))];
    oldest.again = false;
    oldest.last = now;
  }
  void let_go(int32_t id, uint64_t now) { pages_[size_t(id)].last = now; }
  void evictable(int32_t id, bool on) { pages_[size_t(id)].evictable = on; }
  void gone(int32_t id) { pages_[size_t(id)] = {}; }
  std::optional<PageId> victim() const {
    std::optional<PageId> best;
    for (int32_t i = 0; i < int32_t(pages_.size()); ++i)
      if (pages_[size_t(i)].evictable && (!best || before(i, best->value))) best = PageId(i);
    return best;
  }

 private:
  struct Page {
    int64_t uses = 0;
    uint64_t last = 0;
    int32_t priority = 0;
    bool again = false, evictable = false;
  };
  bool before(int32_t a, int32_t b) const {
    const Page &p = pages_[size_t(a)], &q = pages_[size_t(b)];
    if (name_ == "lfu" && p.uses != q.uses) return p.uses < q.uses;
    if (name_ == "priority" && p.priority != q.priority) return p.priority < q.priority;
    if (name_ == "slru" && p.again != q.again) return !p.again;
    return std::pair(p.last, a) < std::pair(q.last, b);
  }

  std::string name_;
  size_t most_;
  std::vector<Page> pages_;
};

class Model : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Policies, Model, ::testing::Values("lru", "lfu", "slru", "priority"));

TEST_P(Model, AgreesWithANaiveList) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    auto below = [&](int32_t n) { return int32_t(random() % uint32_t(n)); };
    const int32_t pages = 1 + below(40);
    auto policy = make(GetParam(), pages);
    Naive naive(GetParam(), pages);
    std::vector<bool> inside(size_t(pages), false), evictable(size_t(pages), false);
    uint64_t now = 0;
    for (int step = 0; step < 3000; ++step) {
      const int32_t id = below(pages), priority = below(5) - 2;
      const size_t at = size_t(id);
      now += uint64_t(below(2));  // several at one time, as along a path
      if (!inside[at]) {
        policy->on_use(PageId(id), now, priority);
        naive.use(id, now, priority);
        inside[at] = true;
      } else if (const int32_t what = below(5); what == 0) {
        policy->on_use(PageId(id), now, priority);
        naive.use(id, now, priority);
      } else if (what == 1) {
        policy->on_let_go(PageId(id), now);
        naive.let_go(id, now);
      } else if (what == 2 && evictable[at]) {
        policy->on_kept(PageId(id));
        naive.evictable(id, evictable[at] = false);
      } else if (what == 3 && !evictable[at]) {
        policy->on_evictable(PageId(id));
        naive.evictable(id, evictable[at] = true);
      } else if (const auto victim = policy->victim()) {
        policy->on_gone(*victim);
        naive.gone(victim->value);
        inside[size_t(victim->value)] = evictable[size_t(victim->value)] = false;
      }
      ASSERT_EQ(policy->victim(), naive.victim()) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace attune::kv
