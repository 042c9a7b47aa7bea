#include "kv/index/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace attune::kv {
namespace {

using Tokens = std::vector<TokenId>;

static_assert(!std::is_copy_constructible_v<PrefixPin>);

struct Cache {
  explicit Cache(int32_t pages, int32_t page_size, HashSeed seed = {1, 2})
      : pool(pages + 1, page_size),
        index(pool, make_lru_policy, {"model-1", "f32", "hnd"}, seed),
        salt(index.salt("", "")) {}

  // As a sequence does: matches, then computes and publishes what is missing. The pin of it all.
  PrefixPin put(const Tokens& tokens, const PrefixSalt& s) {
    PrefixMatch found = index.match(tokens, s);
    index.use(tokens, s);
    const auto page_size = static_cast<size_t>(pool.page_size());
    while (size_t(found.pin.pages() + 1) * page_size <= tokens.size()) {
      if (pool.free() == 0) index.evict(1);
      auto page = pool.reserve(1);
      if (!page) break;
      const auto next = std::span(tokens).subspan(size_t(found.pin.pages()) * page_size, page_size);
      EXPECT_FALSE(index.extend(found.pin, s, next, page->take()).duplicate);
    }
    return std::move(found.pin);
  }
  PrefixPin put(const Tokens& tokens) { return put(tokens, salt); }

  PagePool pool;
  PrefixIndex index;
  PrefixSalt salt;
};

Tokens iota(int32_t n, TokenId first = 0) {
  Tokens t(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) t[size_t(i)] = first + i;
  return t;
}

TEST(PrefixIndex, FindsTheLongestPrefixInWholePages) {
  Cache c(8, 4);
  c.put(iota(11));
  EXPECT_EQ(c.index.cached(), 2);
  Tokens other = iota(12);
  other[5] = 99;
  EXPECT_EQ(c.index.match(iota(12), c.salt).slots.size(), 2u);
  EXPECT_EQ(c.index.match(other, c.salt).slots.size(), 1u);
  other[0] = 99;
  EXPECT_EQ(c.index.match(other, c.salt).slots.size(), 0u);
  EXPECT_EQ(c.index.peek(iota(100), c.salt), 8);
  EXPECT_EQ(c.index.check(), "");
}

TEST(PrefixIndex, HeldPathsAreNotEvicted) {
  Cache c(4, 1);
  c.put(iota(3));
  PrefixPin pin = c.index.match(iota(2), c.salt).pin;
  EXPECT_EQ(c.index.evictable(), 1);
  EXPECT_EQ(c.index.evict(10), 1);
  EXPECT_EQ(c.index.peek(iota(3), c.salt), 2);
  pin.reset();
  EXPECT_EQ(c.index.evict(10), 2);
  EXPECT_EQ(c.pool.free(), 4);
  EXPECT_EQ(c.index.check(), "");
}

TEST(PrefixIndex, EvictsTheLeastRecentlyUsedLeaf) {
  Cache c(4, 1);
  c.put({1, 2});
  c.put({1, 3});
  c.put({4});
  c.index.use(Tokens{1, 2}, c.salt);
  EXPECT_EQ(c.index.evict(1), 1);
  EXPECT_EQ(c.index.peek(Tokens{1, 3}, c.salt), 1);
  EXPECT_EQ(c.index.evict(1), 1);
  EXPECT_EQ(c.index.peek(Tokens{4}, c.salt), 0);
  EXPECT_EQ(c.index.peek(Tokens{1, 2}, c.salt), 2);
}

TEST(PrefixIndex, RootsOfEvictedSaltsAreForgotten) {
  Cache c(4, 1);
  for (int i = 0; i < 1000; ++i) c.put({1}, c.index.salt("", std::to_string(i)));
  EXPECT_EQ(c.index.cached(), 4);
  EXPECT_EQ(c.index.check(), "");
  EXPECT_EQ(c.index.peek(Tokens{1}, c.index.salt("", "0")), 0);
  EXPECT_EQ(c.index.peek(Tokens{1}, c.index.salt("", "999")), 1);
}

TEST(BugD11, KeysShorterThanAPageAreHarmless) {
  for (const int32_t page_size : {1, 16, 64}) {
    for (int32_t n = 0; n <= 130; ++n) {
      Cache c(140, page_size);
      c.put(iota(n));
      EXPECT_EQ(c.index.cached(), n / page_size);
      EXPECT_EQ(c.index.peek(iota(n), c.salt), n / page_size * page_size);
      EXPECT_EQ(c.index.evict(200), n / page_size);
      EXPECT_EQ(c.index.check(), "");
    }
  }
}

// 10,000 random operations against a plain map of what each slot must hold.
void random_operations(int32_t page_size, bool constant_hash) {
  Cache c(24, page_size);
  if (constant_hash) c.index.use_constant_hash_for_test();
  std::mt19937 rng(static_cast<unsigned>(page_size));
  std::map<DeviceSlot, std::pair<int, Tokens>> holds;  // slot -> (salt, all tokens up to its end)
  std::vector<PrefixPin> pins;
  const auto size = static_cast<size_t>(page_size);
  for (int op = 0; op < 10000; ++op) {
    Tokens t(rng() % (6 * size + 1));
    for (TokenId& id : t) id = static_cast<TokenId>(rng() % (page_size == 1 ? 3 : 2));
    if (rng() % 2) std::fill(t.begin(), t.end() - ptrdiff_t(std::min(t.size(), size)), 1);
    const int s = static_cast<int>(rng() % 2);
    const PrefixSalt salt = c.index.salt("", s ? "x" : "");
    PrefixMatch found = c.index.match(t, salt);
    for (size_t i = 0; i < found.slots.size(); ++i)
      ASSERT_EQ(holds.at(found.slots[i]),
                std::pair(s, Tokens(t.begin(), t.begin() + ptrdiff_t((i + 1) * size))));
    while (size_t(found.pin.pages() + 1) * size <= t.size()) {
      if (c.pool.free() == 0 && c.index.evict(1) == 0) break;
      const auto at = size_t(found.pin.pages()) * size;
      auto [slot, duplicate] = c.index.extend(found.pin, salt, std::span(t).subspan(at, size),
                                              c.pool.reserve(1)->take());
      ASSERT_FALSE(duplicate);
      holds[slot] = {s, Tokens(t.begin(), t.begin() + ptrdiff_t(at + size))};
    }
    if (rng() % 2) pins.push_back(std::move(found.pin));
    if (pins.size() > 3) pins.erase(pins.begin() + ptrdiff_t(rng() % pins.size()));
    if (rng() % 4 == 0) c.index.evict(static_cast<int32_t>(rng() % 4));
    ASSERT_EQ(c.index.check(), "");
    ASSERT_EQ(c.pool.free() + c.index.cached(), c.pool.total());
  }
}

TEST(BugD12, CountersEqualAFullWalk) {
  for (const int32_t page_size : {1, 16, 64}) random_operations(page_size, false);
}

TEST(BugD14, DuplicatePagesOfTwoEqualPrompts) {
  Cache c(8, 2);
  const Tokens t = iota(4);
  PrefixPin a, b;
  std::vector<OwnedPage> kept;
  for (size_t i = 0; i < 4; i += 2) {
    const auto page = std::span(t).subspan(i, 2);
    const auto of_a = c.index.extend(a, c.salt, page, c.pool.reserve(1)->take());
    auto of_b = c.index.extend(b, c.salt, page, c.pool.reserve(1)->take());
    EXPECT_FALSE(of_a.duplicate);
    ASSERT_TRUE(of_b.duplicate);
    EXPECT_EQ(of_a.slot, of_b.slot);  // both tables go on with one page
    EXPECT_NE(of_b.duplicate.slot(), of_b.slot);
    kept.push_back(std::move(of_b.duplicate));
  }
  EXPECT_EQ(c.pool.free(), 4);  // the duplicates live as long as their owner wants
  kept.clear();
  EXPECT_EQ(c.pool.free(), 6);
  a.reset();
  EXPECT_EQ(c.index.evict(8), 0);  // b still holds them
  b.reset();
  EXPECT_EQ(c.index.evict(8), 2);
}

TEST(BugD26, EqualHashIsNeverIdentity) {
  for (const int32_t page_size : {1, 16}) random_operations(page_size, true);
}

TEST(BugD28, IdentityIsContentNotName) {
  Cache c(8, 1);
  c.put({1, 2}, c.index.salt("adapter-sha-1", ""));
  EXPECT_EQ(c.index.peek(Tokens{1, 2}, c.index.salt("adapter-sha-1", "")), 2);
  EXPECT_EQ(c.index.peek(Tokens{1, 2}, c.index.salt("adapter-sha-2", "")), 0);
  EXPECT_EQ(c.index.peek(Tokens{1, 2}, c.index.salt("", "adapter-sha-1")), 0);
  EXPECT_EQ(c.index.peek(Tokens{1, 2}, c.index.salt("adapter-sha", "-1")), 0);
  // No bytes of a client's salt can imitate another field.
  EXPECT_NE(c.index.salt("a", std::string("\0\0b", 3)), c.index.salt(std::string("a\0", 2), "\0b"));
  PagePool pool(4, 1);
  const CacheIdentity base{"model", "f32", "hnd"};
  const auto salt_of = [&](CacheIdentity i) {
    return PrefixIndex(pool, make_lru_policy, std::move(i)).salt("", "");
  };
  EXPECT_EQ(salt_of(base), salt_of({"model", "f32", "hnd"}));
  EXPECT_NE(salt_of(base), salt_of({"model2", "f32", "hnd"}));
  EXPECT_NE(salt_of(base), salt_of({"model", "bf16", "hnd"}));
  EXPECT_NE(salt_of(base), salt_of({"model", "f32", "nhd"}));
  EXPECT_NE(salt_of(base), salt_of({"modelf32", "", "hnd"}));
}

TEST(BugD29, HashesAreKeyedByTheProcess) {
  const Tokens t = iota(16);
  Cache a(2, 16, {1, 2}), b(2, 16, {1, 3}), same(2, 16, {1, 2});
  EXPECT_NE(a.index.hash(PageId(0), t), b.index.hash(PageId(0), t));
  EXPECT_EQ(a.index.hash(PageId(0), t), same.index.hash(PageId(0), t));
  EXPECT_NE(a.index.hash(PageId(0), t), a.index.hash(PageId(1), t));
  EXPECT_NE(random_hash_seed(), random_hash_seed());
}

// ---- with a host tier --------------------------------------------------------------------------

struct Tiered {
  Tiered(int32_t device, int32_t host, int32_t page_size, TierPlan tiers = {})
      : pool(device + 1, page_size, host),
        index(pool, make_lru_policy, {"model-1", "f32", "hnd"}, {1, 2}, std::move(tiers)),
        salt(index.salt("", "")) {
    pool.open_host(host);
  }
  void put(const Tokens& tokens) {
    const auto page_size = static_cast<size_t>(pool.page_size());
    PrefixPin pin = index.match(tokens, salt).pin;
    for (size_t at = size_t(pin.pages()) * page_size; at + page_size <= tokens.size();
         at += page_size) {
      if (pool.free() == 0) index.evict(1);
      auto page = pool.reserve(1);
      if (!page) return;
      index.extend(pin, salt, std::span(tokens).subspan(at, page_size), page->take());
    }
  }
  void save_all(bool complete = true) {
    for (auto saves = index.begin_saves(1000); !saves.empty(); saves = index.begin_saves(1000))
      for (PageTransfer& save : saves) index.finish(std::move(save), complete);
  }

  PagePool pool;
  PrefixIndex index;
  PrefixSalt salt;
};

// However hard the pool is pressed, nobody gets a slot that a load reads or fills.
TEST(BugD02, BothEndsOfALoadStayUntilItEnds) {
  Tiered c(4, 4, 1);
  c.put(iota(3));
  c.save_all();
  ASSERT_EQ(c.index.evict(4), 3);
  PrefixMatch found = c.index.match(iota(3), c.salt);
  ASSERT_EQ(found.host_pages, 3);
  auto fresh = c.pool.reserve(3);
  auto loads = c.index.load(found.pin, c.salt, iota(3), 3, *fresh);
  std::set<int32_t> slots, host_slots;
  for (const PageTransfer& load : loads) {
    slots.insert(load.slot().value);
    host_slots.insert(load.host_slot().value);
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(c.index.evict(10), 0);
    auto rest = c.pool.reserve(1);
    ASSERT_TRUE(rest);
    EXPECT_FALSE(slots.contains(rest->take().slot().value));
    EXPECT_FALSE(c.pool.reserve(2));
    auto fetch = c.index.begin_fetch();
    ASSERT_TRUE(fetch);
    EXPECT_FALSE(host_slots.contains(fetch->transfer.host_slot().value));
    EXPECT_FALSE(c.index.begin_fetch());
  }
  EXPECT_TRUE(c.index.match(iota(3), c.salt).loading);
  for (PageTransfer& load : loads) c.index.finish(std::move(load), true);
  EXPECT_EQ(c.index.match(iota(3), c.salt).slots.size(), 3u);
  EXPECT_EQ(c.index.check(), "");
}

// A host with too little room, every third copy fails: check() says that each page is ready
// somewhere.
TEST(BugD04, AFailedSaveIsNoCopy) {
  for (const auto write : {WritePolicy::kWriteThrough, WritePolicy::kWriteBack}) {
    Tiered c(12, 5, 2, {.write = write});
    std::mt19937 rng(4);
    int saves = 0;
    for (int i = 0; i < 3000; ++i) {
      Tokens t(2 + rng() % 12);
      for (TokenId& id : t) id = TokenId(rng() % 2);
      c.put(t);
      c.index.save_ahead(4);
      for (PageTransfer& save : c.index.begin_saves(3)) {
        const PageId id = save.id();
        const bool fails = ++saves % 3 == 0;
        c.index.finish(std::move(save), !fails);
        ASSERT_EQ(c.pool.host_state(id) == PageState::kReady, !fails);
      }
      c.index.evict(int32_t(rng() % 5));
      ASSERT_EQ(c.index.check(), "");
    }
    EXPECT_GT(saves, 100);
  }
}

TEST(BugD11, ShortKeysGoThroughTheTiersToo) {
  for (int32_t n = 0; n <= 130; ++n) {
    Tiered c(4, 4, 64, {.storage = true});
    c.put(iota(n));
    c.save_all();
    EXPECT_EQ(c.index.begin_stores(10).size(), size_t(n / 64));
    c.index.evict(4);
    EXPECT_EQ(c.index.match(iota(n), c.salt).host_pages, n / 64);
    EXPECT_EQ(c.index.identities(iota(n), c.salt, 0).size(), size_t(n / 64));
    EXPECT_EQ(c.index.check(), "");
  }
}

// Ends the stores that are wanted; how many they were.
int store_all(Tiered& c, bool complete) {
  auto stores = c.index.begin_stores(1000);
  for (PrefixIndex::Store& store : stores) c.index.finish(std::move(store.transfer), complete);
  return static_cast<int>(stores.size());
}

// A store that had failed was tried again at the end alone.
TEST(PrefixStores, AFailedStoreIsTriedAgainWhenThePageIsUsed) {
  Tiered c(8, 8, 2, {.storage = true});
  c.put(iota(6));
  c.save_all();
  EXPECT_EQ(store_all(c, /*complete=*/false), 3);
  EXPECT_EQ(store_all(c, true), 0);  // not for ever
  c.index.use(iota(4), c.salt);
  c.index.use(iota(4), c.salt);
  EXPECT_EQ(store_all(c, true), 2);
  c.index.use(iota(6), c.salt);
  EXPECT_EQ(store_all(c, true), 1);
  c.index.use(iota(6), c.salt);
  EXPECT_EQ(store_all(c, true), 0);
}

TEST(PrefixStores, StorageThatIsDownGetsNewPagesAlone) {
  Tiered c(40, 40, 1, {.storage = true});
  c.put(iota(16));
  c.save_all();
  EXPECT_EQ(store_all(c, false), 16);
  c.index.use(iota(16), c.salt);
  EXPECT_EQ(store_all(c, false), 0);
  c.put(iota(17));
  c.save_all();
  EXPECT_EQ(store_all(c, true), 1);  // it is back
  c.index.use(iota(16), c.salt);
  EXPECT_EQ(store_all(c, true), 16);
}

// Storage sees no use of what the host serves: the pages that were used most were the first that it
// dropped, and counted as stored for ever.
TEST(PrefixStores, WhatStorageDropsIsStoredAgain) {
  Tiered c(8, 8, 1, {.storage = true, .storage_pages = 4});
  const auto store = [&](TokenId first) {
    c.put({first});
    c.save_all();
    return store_all(c, true);
  };
  EXPECT_EQ(store(10), 1);
  EXPECT_EQ(store(20), 1);
  c.index.use(Tokens{10}, c.salt);
  EXPECT_EQ(store_all(c, true), 0);  // one of the two newest
  EXPECT_EQ(store(30), 1);
  c.index.use(Tokens{10}, c.salt);
  EXPECT_EQ(store_all(c, true), 1);  // before it is dropped
  EXPECT_EQ(store(40), 1);
  c.index.want_all();
  EXPECT_EQ(store_all(c, true), 0);  // all four are there
  EXPECT_EQ(store(50), 1);           // which drops 20
  c.index.want_all();
  EXPECT_EQ(store_all(c, true), 1);
}

TEST(BugD26, APageFromStorageIsMatchedByItsTokens) {
  Tiered c(4, 4, 2, {.storage = true});
  c.index.use_constant_hash_for_test();
  for (const TokenId last : {5, 6}) {
    auto fetch = c.index.begin_fetch();
    c.index.finish(std::move(fetch->transfer), true);
    c.index.insert_fetched(Tokens{4, last}, c.salt, std::move(fetch->page));
  }
  EXPECT_EQ(c.index.peek(Tokens{4, 5}, c.salt), 2);
  EXPECT_EQ(c.index.peek(Tokens{4, 6}, c.salt), 2);
  EXPECT_EQ(c.index.peek(Tokens{4, 7}, c.salt), 0);
  EXPECT_EQ(c.index.peek(Tokens{4, 5}, c.index.salt("", "b")), 0);
}

TEST(BugD28, NamesInStorageAreOfTheContent) {
  Tiered c(4, 4, 2, {.storage = true, .root_salt = "r"});
  Tiered same(4, 4, 2, {.storage = true, .root_salt = "r"});
  Tiered other(4, 4, 2, {.storage = true, .root_salt = "s"});
  const auto names = [](const Tiered& of, const char* adapter) {
    return of.index.identities(Tokens{1, 2, 3, 4}, of.index.salt(adapter, ""), 0);
  };
  EXPECT_EQ(names(c, "sha-1"), names(same, "sha-1"));
  EXPECT_NE(names(c, "sha-1")[1].key, names(c, "sha-2")[1].key);
  EXPECT_NE(names(c, "sha-1")[1].key, names(other, "sha-1")[1].key);  // BugD29: per storage
}

TEST(BugD39, WhatIsInTheHostIsMatched) {
  for (const auto write :
       {WritePolicy::kWriteThrough, WritePolicy::kWriteThroughSelective, WritePolicy::kWriteBack}) {
    Tiered c(8, 8, 2, {.write = write});
    c.put(iota(10));
    c.index.use(iota(10), c.salt);
    c.index.save_ahead(8);
    c.save_all();
    EXPECT_EQ(c.index.evict(8), 5);
    EXPECT_EQ(c.pool.free(), 8);
    const PrefixMatch found = c.index.match(iota(10), c.salt);
    EXPECT_EQ(found.host_pages, 5);
    EXPECT_FALSE(found.pin.pages());
  }
}

TEST(PrefixIndex, WhatIsSpareGoesWithoutLoss) {
  Tiered c(8, 8, 1, {.write = WritePolicy::kWriteBack});
  c.put(iota(3));
  c.index.save_ahead(8);
  c.save_all();
  EXPECT_EQ(c.index.spare(), 8);
  c.put(iota(4));  // the last one is on the device alone, and has to go first
  EXPECT_EQ(c.index.spare(), 4);
  c.index.save_ahead(8);
  c.save_all();
  EXPECT_EQ(c.index.spare(), 8);
  c.index.evict(8);
  EXPECT_EQ(c.index.match(iota(4), c.salt).host_pages, 4);
}

// 128k tokens: no walk is longer than the path, and none goes deep into the stack.
TEST(PrefixIndex, LongPathsGoThroughTheTiers) {
  constexpr int32_t kPages = 8192;
  Tiered c(kPages, kPages, 16);
  const Tokens tokens = iota(kPages * 16);
  c.put(tokens);
  c.save_all();
  ASSERT_EQ(c.index.evict(kPages), kPages);
  PrefixMatch found = c.index.match(tokens, c.salt);
  ASSERT_EQ(found.host_pages, kPages);
  auto fresh = c.pool.reserve(kPages);
  for (PageTransfer& load : c.index.load(found.pin, c.salt, tokens, kPages, *fresh))
    c.index.finish(std::move(load), true);
  found.pin.reset();
  EXPECT_EQ(c.index.match(tokens, c.salt).pin.pages(), kPages);
  c.index.clear();
  EXPECT_EQ(c.index.pages(), 0);
}

}  // namespace
}  // namespace attune::kv
