#include <gtest/gtest.h>

#include "kv/policy/eviction_policy.h"

namespace attune::kv {
namespace {

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

}  // namespace
}  // namespace attune::kv
