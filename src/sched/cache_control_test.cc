#include "sched/cache_control.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace attune::sched {
namespace {

struct World {
  World(CacheConfig config, int32_t device, int32_t host, kv::TierPlan tiers)
      : pool(device + 1, 4, host),
        index(pool, kv::make_lru_policy, {"model", "f32", "hnd"}, {1, 2}, std::move(tiers)),
        salt(index.salt("", "")),
        cache(config, pool, index) {
    pool.open_host(host);
  }
  // A path of `pages` pages, as a request leaves it.
  void put(int32_t pages, TokenId first) {
    std::vector<TokenId> tokens(size_t(pages) * 4);
    std::iota(tokens.begin(), tokens.end(), first);
    kv::PrefixPin pin;
    for (int32_t i = 0; i < pages; ++i)
      index.extend(pin, salt, std::span(tokens).subspan(size_t(i) * 4, 4), pool.reserve(1)->take());
  }
  HiCacheStats stats() const {
    HiCacheStats s;
    cache.count(s);
    return s;
  }

  kv::PagePool pool;
  kv::PrefixIndex index;
  kv::PrefixSalt salt;
  CacheControl cache;
};

CacheConfig config_of(bool write_back, bool storage) {
  CacheConfig c;
  c.enabled = true;
  c.write_back = write_back;
  c.storage = storage;
  c.prefetch_threshold = 4;
  c.prefetch = PrefetchPolicy::kWaitComplete;
  return c;
}

// Prefetches that are refused, cut short by a bad page or lose their request at any point; in the
// end none is left, and one as large as may be starts.
TEST(BugD07, PrefetchesThatEndBadlyLeaveNothingInFlight) {
  World w(config_of(false, true), 8, 72, {.storage = true});
  std::mt19937 rng(7);
  std::vector<CacheWork::Match> matches;
  std::vector<uint64_t> fetches;
  const auto take = [&] {
    CacheWork work = w.cache.take_work();
    for (auto& m : work.matches) matches.push_back(std::move(m));
    for (const auto& f : work.fetches) fetches.push_back(f.op);
    for (const auto& s : work.stores) w.cache.on_copied(s.op, true);
    for (const auto& s : work.saves) w.cache.on_copied(s.op, true);
  };
  const auto answer = [&](bool fetch) {
    if (fetch ? fetches.empty() : matches.empty()) return;
    const bool bad = rng() % 10 < 3;
    if (fetch) {
      const auto at = fetches.begin() + ptrdiff_t(rng() % fetches.size());
      const uint64_t op = *at;
      fetches.erase(at);
      w.cache.on_copied(op, !bad);
    } else {
      const CacheWork::Match m = std::move(matches.back());
      matches.pop_back();
      w.cache.on_matched(m.op, bad ? 0 : int32_t(m.keys.size()));
    }
    take();
  };
  for (RequestId id = 1; id <= 1000; ++id) {
    std::vector<TokenId> tokens(4 + rng() % 40);
    for (TokenId& t : tokens) t = TokenId(rng() % 50);
    w.cache.prefetch(id, tokens, w.salt);
    take();
    for (auto n = rng() % 12; n > 0; --n) answer(rng() % 4 > 0);
    if (rng() % 10 < 3) w.cache.forget(1 + rng() % id);
    if (rng() % 10 < 3) w.cache.cut_prefetch(1 + rng() % id);
    ASSERT_EQ(w.index.check(), "");
  }
  EXPECT_GT(w.stats().prefetches, 300u);
  EXPECT_GT(w.stats().prefetched_pages, 300u);
  while (!matches.empty() || !fetches.empty()) answer(matches.empty());
  EXPECT_EQ(w.stats().prefetches_in_flight, 0);
  EXPECT_FALSE(w.cache.busy());
  std::vector<TokenId> most(51 * 4, 99);  // 0.8 of the 64 pages that the host has more
  const uint64_t before = w.stats().prefetches;
  w.cache.prefetch(2000, most, w.salt);
  EXPECT_EQ(w.stats().prefetches, before + 1);
  w.index.clear();
}

TEST(CacheControl, WriteBackWaitsForItsCopiesAndNoLonger) {
  World w(config_of(true, false), 8, 16, {.write = kv::WritePolicy::kWriteBack});
  w.put(8, 1);
  EXPECT_FALSE(w.cache.may_take(2));
  CacheWork work = w.cache.take_work();
  ASSERT_GE(work.saves.size(), 2u);
  for (const auto& save : work.saves) {
    EXPECT_FALSE(w.cache.may_take(8));
    w.cache.on_copied(save.op, true);
  }
  EXPECT_TRUE(w.cache.may_take(2));
  w.index.clear();
}

TEST(CacheControl, NobodyWaitsForALinkThatIsDown) {
  World w(config_of(true, false), 8, 16, {.write = kv::WritePolicy::kWriteBack});
  w.put(8, 1);
  int tries = 0;
  for (; !w.cache.may_take(2) && tries < 100; ++tries)
    for (const auto& save : w.cache.take_work().saves) w.cache.on_copied(save.op, false);
  EXPECT_GT(tries, 1);
  EXPECT_LT(tries, 100);
  EXPECT_EQ(w.index.spare(), 0);  // what goes now is lost
  for (const auto& save : w.cache.take_work().saves) w.cache.on_copied(save.op, true);
  EXPECT_TRUE(w.cache.may_take(2));
  EXPECT_FALSE(w.cache.may_take(8));  // the link is back
  for (const auto& save : w.cache.take_work().saves) w.cache.on_copied(save.op, true);
  w.index.clear();
}

}  // namespace
}  // namespace attune::sched
