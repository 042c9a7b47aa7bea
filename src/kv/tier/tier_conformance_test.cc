// What every tier does, whatever its medium.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "kv/tier/record.h"
#include "kv/tier/testing/tier_world.h"

namespace attune::kv::testing {
namespace {

using ::testing::Each;

struct Medium {
  const char* name;
  std::unique_ptr<TierWorld> (*make)();
};

class Conformance : public ::testing::TestWithParam<Medium> {
 protected:
  void SetUp() override {
    world_ = GetParam().make();
    ASSERT_NE(world_, nullptr) << "there is no medium: the messages above say why";
  }
  std::unique_ptr<KvTier> open(TierConfig config = {}) {
    if (config.identity.empty()) config.identity = "a model, f32";
    auto tier = world_->open(config);
    EXPECT_TRUE(tier.ok()) << tier.status().to_string();
    return std::move(*tier);
  }
  std::string salt() { return open()->info().root_salt; }

  std::unique_ptr<TierWorld> world_;
};

TEST_P(Conformance, RoundTrip) {
  const auto tier = open();
  auto pages = make_pages(40, tier->info().root_salt);
  EXPECT_EQ(match_now(*tier, keys_of(pages)), 0);
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  EXPECT_EQ(match_now(*tier, keys_of(pages)), 40);
  EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
  const TierStats stats = tier->stats();
  EXPECT_EQ(stats.pages, 40);
  EXPECT_EQ(stats.hits, 40u);
  EXPECT_EQ(stats.written, 40u);
  EXPECT_EQ(stats.read_bytes, 40u * 3000);
  EXPECT_EQ(stats.written_bytes, 40u * 3000);
  EXPECT_EQ(stats.misses, 1u);  // the first match
  EXPECT_EQ(stats.queued, 0);
  EXPECT_GT(stats.read_seconds, 0);
  EXPECT_GT(stats.write_seconds, 0);
}

TEST_P(Conformance, BigAndSmallPages) {
  const auto tier = open();
  int chain = 0;
  for (auto [runs, bytes] : {std::pair<int32_t, int64_t>{1, 1}, {1, 3'000'001}, {1500, 257}}) {
    auto pages = make_pages(2, tier->info().root_salt, ++chain, runs, bytes);
    EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
    EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
  }
}

TEST_P(Conformance, MatchCountsToTheFirstThatIsMissing) {
  const auto tier = open();
  auto pages = make_pages(10, tier->info().root_salt);
  write_all(*tier, pages);
  world_->erase(pages[6].identity.key);
  EXPECT_EQ(match_now(*tier, keys_of(pages)), 6);
  EXPECT_EQ(match_now(*tier, {}), 0);
  EXPECT_THAT(read_all(*tier, {pages[6]}), Each(TierResult::kMiss));
}

// All cost, no benefit: pages were written, and never found again.
TEST_P(Conformance, BugD08AnotherServerFindsEveryPage) {
  auto first = open();
  const std::string root_salt = first->info().root_salt;
  auto pages = make_pages(50, root_salt);
  EXPECT_THAT(write_all(*first, pages), Each(TierResult::kOk));
  const auto beside = open();
  EXPECT_EQ(beside->info().root_salt, root_salt);
  EXPECT_THAT(read_all(*beside, pages), Each(TierResult::kOk));
  first.reset();
  const auto after = open();
  EXPECT_EQ(after->info().root_salt, root_salt);
  EXPECT_EQ(match_now(*after, keys_of(pages)), 50);
  EXPECT_THAT(read_all(*after, pages), Each(TierResult::kOk));
  EXPECT_EQ(after->stats().hits, 50u);
  EXPECT_EQ(after->stats().pages, 50);
}

TEST_P(Conformance, BugD29EveryStorageHasItsOwnSalt) {
  const auto other = GetParam().make();
  ASSERT_NE(other, nullptr);
  const auto tier = other->open({});
  ASSERT_TRUE(tier.ok()) << tier.status().to_string();
  EXPECT_NE((*tier)->info().root_salt, salt());
  EXPECT_GE(salt().size(), 8u);
}

TEST_P(Conformance, AcknowledgedMeansThere) {
  const auto tier = open();
  auto pages = make_pages(20, tier->info().root_salt);
  std::atomic<int> absent{0};
  Outcomes outcomes;
  for (TestPage& page : pages)
    tier->write(page.identity, page.runs(),
                [&, key = page.identity.key, done = outcomes.next()](TierResult result) {
                  if (!world_->get(key)) ++absent;
                  done(result);
                });
  EXPECT_THAT(outcomes.wait(), Each(TierResult::kOk));
  EXPECT_EQ(absent, 0);
}

TEST_P(Conformance, TheLastOfTwoWritesStays) {
  const auto tier = open();
  auto pages = make_pages(1, tier->info().root_salt);
  for (uint64_t seed : {1, 2}) {
    pages[0].fill(seed);
    EXPECT_EQ(write_one(*tier, pages[0]), TierResult::kOk);
    EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
  }
  EXPECT_EQ(tier->stats().pages, 1);
}

TEST_P(Conformance, Clear) {
  const auto tier = open();
  auto pages = make_pages(20, tier->info().root_salt);
  write_all(*tier, pages);
  const std::string root_salt = tier->info().root_salt;
  EXPECT_TRUE(tier->clear().ok());
  EXPECT_EQ(world_->held_bytes(), 0);
  EXPECT_EQ(tier->stats().pages, 0);
  EXPECT_EQ(tier->stats().bytes, 0);
  EXPECT_EQ(salt(), root_salt);
  EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kMiss));
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
}

TEST_P(Conformance, OldPagesGoForNewOnesAndUsedOnesStay) {
  constexpr int64_t kBudget = 200'000;
  const auto tier = open({.budget_bytes = kBudget});
  auto pages = make_pages(30, tier->info().root_salt, 0, 1, 20'000);
  for (TestPage& page : pages) {
    EXPECT_EQ(write_one(*tier, page), TierResult::kOk);
    EXPECT_LE(world_->held_bytes(), kBudget);
    EXPECT_THAT(read_all(*tier, {pages[0]}), Each(TierResult::kOk));  // is used again and again
  }
  const auto results = read_all(*tier, pages);
  EXPECT_THAT(std::vector(results.begin() + 1, results.begin() + 20), Each(TierResult::kMiss));
  EXPECT_THAT(std::vector(results.end() - 5, results.end()), Each(TierResult::kOk));
  EXPECT_GE(tier->stats().evicted, 20u);
  EXPECT_LE(tier->stats().bytes, kBudget);
}

TEST_P(Conformance, TheOrderOfUseOutlivesARestart) {
  constexpr int64_t kBudget = 200'000;
  auto tier = open({.budget_bytes = kBudget});
  auto pages = make_pages(7, tier->info().root_salt, 0, 1, 20'000);
  for (TestPage& page : pages) EXPECT_EQ(write_one(*tier, page), TierResult::kOk);
  EXPECT_THAT(read_all(*tier, {pages[0]}), Each(TierResult::kOk));
  tier = open({.budget_bytes = kBudget});
  auto more = make_pages(5, tier->info().root_salt, 1, 1, 20'000);
  for (TestPage& page : more) EXPECT_EQ(write_one(*tier, page), TierResult::kOk);
  EXPECT_LE(world_->held_bytes(), kBudget);
  const auto results = read_all(*tier, pages);
  EXPECT_EQ(results[0], TierResult::kOk);
  EXPECT_EQ(results[1], TierResult::kMiss);
}

TEST_P(Conformance, APageAboveTheBudgetIsRefusedAndDrivesNoneOut) {
  const auto tier = open({.budget_bytes = 100'000});
  auto pages = make_pages(3, tier->info().root_salt, 0, 1, 20'000);
  EXPECT_THAT(write_all(*tier, pages), Each(TierResult::kOk));
  auto big = make_pages(1, tier->info().root_salt, 1, 1, 100'000);
  EXPECT_EQ(write_one(*tier, big[0]), TierResult::kFull);
  EXPECT_EQ(tier->stats().full, 1u);
  EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kOk));
  EXPECT_EQ(tier->stats().evicted, 0u);
}

// Calls `damage` with the record of a page, puts back what it makes of it, and expects that it is
// found out, counted and removed.
void expect_corrupt(TierWorld& world, KvTier& tier, TestPage& page,
                    const std::function<void(std::string&)>& damage, const std::string& what) {
  ASSERT_EQ(write_one(tier, page), TierResult::kOk) << what;
  std::string record = world.get(page.identity.key).value_or("");
  ASSERT_FALSE(record.empty());
  damage(record);
  world.put(page.identity.key, record);
  const uint64_t before = tier.stats().corrupt;
  TestPage got = page.blank();
  EXPECT_EQ(read_one(tier, got), TierResult::kCorrupt) << what;
  EXPECT_EQ(tier.stats().corrupt, before + 1) << what;
  EXPECT_FALSE(world.get(page.identity.key)) << what;
  EXPECT_EQ(read_one(tier, got), TierResult::kMiss) << what;
}

TEST_P(Conformance, BugD20EveryDamagedByteIsFound) {
  const auto tier = open();
  auto page = make_pages(1, tier->info().root_salt)[0];
  const size_t header = static_cast<size_t>(record_header_bytes(page.identity));
  std::mt19937 random(20);
  std::vector<size_t> places;
  for (size_t i = 0; i < header; ++i) places.push_back(i);
  for (int i = 0; i < 30; ++i) places.push_back(header + random() % 3000);
  places.push_back(header + 2999);
  for (size_t at : places)
    expect_corrupt(
        *world_, *tier, page,
        [&](std::string& record) { record[at] ^= static_cast<char>(1 << random() % 8); },
        "byte " + std::to_string(at));
}

TEST_P(Conformance, BugD20EveryTruncationIsFound) {
  const auto tier = open();
  auto page = make_pages(1, tier->info().root_salt)[0];
  const size_t header = static_cast<size_t>(record_header_bytes(page.identity));
  for (size_t size : {size_t{1}, size_t{8}, size_t{12}, size_t{16}, size_t{48}, size_t{80},
                      size_t{112}, size_t{120}, size_t{124}, header - 16, header - 1, header,
                      header + 1, header + 1000, header + 2999})
    expect_corrupt(
        *world_, *tier, page, [&](std::string& record) { record.resize(size); },
        std::to_string(size) + " bytes are left");
  expect_corrupt(
      *world_, *tier, page, [](std::string& record) { record += '\0'; }, "a byte more");
}

TEST_P(Conformance, BugD20SwappedPagesAreFound) {
  const auto tier = open();
  auto pages = make_pages(2, tier->info().root_salt);
  write_all(*tier, pages);
  const std::string a = *world_->get(pages[0].identity.key),
                    b = *world_->get(pages[1].identity.key);
  world_->put(pages[0].identity.key, b);
  world_->put(pages[1].identity.key, a);
  EXPECT_THAT(read_all(*tier, pages), Each(TierResult::kCorrupt));
  EXPECT_EQ(tier->stats().corrupt, 2u);
}

// Shapes still fit after the engine changed, and what was stored means something else.
TEST_P(Conformance, BugD22AnotherIdentityIsNeverServed) {
  const std::string fields[] = {"llama 3, revision 7", "bf16",    "page_first", "page 16",
                                "8 heads of 1",        "engine 1"};
  const auto joined = [](const std::string(&of)[6]) {
    std::string all;
    for (const std::string& field : of) all += field + "; ";
    return all;
  };
  for (size_t changed = 0; changed < std::size(fields); ++changed) {
    const auto writer = open({.identity = joined(fields)});
    auto pages = make_pages(3, writer->info().root_salt);
    EXPECT_THAT(write_all(*writer, pages), Each(TierResult::kOk));
    EXPECT_THAT(read_all(*writer, pages), Each(TierResult::kOk));
    std::string other[6];
    std::copy(std::begin(fields), std::end(fields), other);
    other[changed] += "x";
    const auto reader = open({.identity = joined(other)});
    EXPECT_EQ(count_of(TierResult::kOk, read_all(*reader, pages)), 0u) << fields[changed];
  }
}

TEST_P(Conformance, BugD26AnEqualKeyIsNotIdentity) {
  const auto tier = open();
  auto page = make_pages(1, tier->info().root_salt)[0];
  const std::function<void(PageIdentity&)> changes[] = {
      [](PageIdentity& id) { id.tokens[3] ^= 1; }, [](PageIdentity& id) { id.tokens.pop_back(); },
      [](PageIdentity& id) { id.tokens.push_back(0); },
      [](PageIdentity& id) { id.parent.bytes[31] ^= 1; }};
  for (const auto& change : changes) {
    ASSERT_EQ(write_one(*tier, page), TierResult::kOk);
    TestPage other = page.blank();
    change(other.identity);
    EXPECT_EQ(read_one(*tier, other), TierResult::kCorrupt);
  }
  ASSERT_EQ(write_one(*tier, page), TierResult::kOk);
  TestPage smaller(page.identity, 3, 999);
  EXPECT_EQ(read_one(*tier, smaller), TierResult::kCorrupt);
}

// Holds the medium with the tier's one thread at work on a read.
struct Busy {
  Busy(TierWorld& world, KvTier& tier, const TestPage& page) : world(world), got(page.blank()) {
    world.hold();
    tier.read(got.identity, got.runs(), outcome.next());
    EXPECT_TRUE(eventually([&] { return tier.stats().queued == 0; }));
  }
  TierWorld& world;
  TestPage got;
  Outcomes outcome;
};

TEST_P(Conformance, WhatHasNotBegunCanBeCancelled) {
  const auto tier = open({.threads = 1});
  auto pages = make_pages(4, tier->info().root_salt);
  write_all(*tier, pages);
  Busy busy(*world_, *tier, pages[0]);
  Outcomes outcomes;
  std::vector<TestPage> got;
  for (const TestPage& page : pages) got.push_back(page.blank());
  std::vector<uint64_t> numbers;
  for (TestPage& page : got)
    numbers.push_back(tier->read(page.identity, page.runs(), outcomes.next()));
  EXPECT_EQ(tier->stats().queued, 4);
  tier->cancel(numbers[1]);
  tier->cancel(numbers[3]);
  tier->cancel(numbers[3]);
  tier->cancel(numbers[3] + 1000);
  world_->let_go();
  using enum TierResult;
  EXPECT_THAT(outcomes.wait(), ::testing::ElementsAre(kOk, kCancelled, kOk, kCancelled));
  EXPECT_EQ(busy.outcome.wait().front(), kOk);
  tier->cancel(numbers[0]);  // done long since
}

TEST_P(Conformance, TheDestructorCancelsWhatIsQueuedAndWaitsForWhatRuns) {
  auto tier = open({.threads = 1});
  auto pages = make_pages(3, tier->info().root_salt);
  write_all(*tier, pages);
  Busy busy(*world_, *tier, pages[0]);
  Outcomes outcomes;
  TestPage got = pages[1].blank();
  tier->read(got.identity, got.runs(), outcomes.next());
  tier->write(pages[2].identity, pages[2].runs(), outcomes.next());
  tier->match(keys_of(pages), outcomes.next_match());
  std::thread end([&] { tier.reset(); });
  world_->let_go();
  end.join();
  const auto results = outcomes.wait();
  const TierResult running = busy.outcome.wait().front();
  EXPECT_EQ(running, TierResult::kOk);
  EXPECT_TRUE(busy.got == pages[0]);
  // The end may come before or after the thread has taken more.
  EXPECT_TRUE(results[0] == TierResult::kCancelled || results[0] == TierResult::kOk);
}

TEST_P(Conformance, ClearCancelsWritesThatHaveNotBegun) {
  const auto tier = open({.threads = 1});
  auto pages = make_pages(3, tier->info().root_salt);
  write_one(*tier, pages[0]);
  Busy busy(*world_, *tier, pages[0]);
  Outcomes outcomes;
  for (TestPage& page : pages) tier->write(page.identity, page.runs(), outcomes.next());
  std::thread clearing([&] { EXPECT_TRUE(tier->clear().ok()); });
  world_->let_go();
  clearing.join();
  for (TierResult result : outcomes.wait())
    EXPECT_TRUE(result == TierResult::kCancelled || result == TierResult::kOk);
  busy.outcome.wait();
}

TEST_P(Conformance, TheQueueIsBounded) {
  const auto tier = open({.threads = 1, .max_queued = 5});
  auto pages = make_pages(12, tier->info().root_salt);
  write_one(*tier, pages[0]);
  Busy busy(*world_, *tier, pages[0]);
  Outcomes outcomes;
  for (TestPage& page : pages) tier->write(page.identity, page.runs(), outcomes.next());
  world_->let_go();
  const auto results = outcomes.wait();
  EXPECT_EQ(count_of(TierResult::kFull, results), 7u);
  EXPECT_EQ(count_of(TierResult::kOk, results), 5u);
  EXPECT_EQ(tier->stats().full, 7u);
  busy.outcome.wait();
}

TEST_P(Conformance, ReadsGoBeforeWrites) {
  const auto tier = open({.threads = 1});
  auto pages = make_pages(6, tier->info().root_salt);
  write_one(*tier, pages[0]);
  Busy busy(*world_, *tier, pages[0]);
  std::mutex mutex;
  std::string order;
  Outcomes outcomes;
  const auto noted = [&](char what) {
    return [&, what, done = outcomes.next()](TierResult result) {
      {
        std::lock_guard lock(mutex);
        order += what;
      }
      done(result);
    };
  };
  for (int i = 1; i < 6; ++i) tier->write(pages[i].identity, pages[i].runs(), noted('w'));
  TestPage got = pages[0].blank();
  tier->read(got.identity, got.runs(), noted('r'));
  world_->let_go();
  outcomes.wait();
  EXPECT_EQ(order, "rwwwww");
  busy.outcome.wait();
}

TEST_P(Conformance, DoneMayAskForMore) {
  const auto tier = open({.threads = 1});
  auto pages = make_pages(1, tier->info().root_salt);
  TestPage got = pages[0].blank();
  Outcomes read, write;
  const auto read_done = read.next();
  tier->write(pages[0].identity, pages[0].runs(), [&, done = write.next()](TierResult result) {
    tier->read(got.identity, got.runs(),
               [read_done](TierResult r) { std::thread([&] { read_done(r); }).join(); });
    done(result);
  });
  write.wait();
  EXPECT_THAT(read.wait(), Each(TierResult::kOk));
  EXPECT_TRUE(got == pages[0]);
}

// Writers and readers of the same pages, which the budget evicts: a read gives the page or nothing.
TEST_P(Conformance, ConcurrentUseNeverServesAWrongPage) {
  const auto one = open({.budget_bytes = 300'000}), two = open({.budget_bytes = 300'000});
  const auto pages = make_pages(30, one->info().root_salt, 0, 2, 8'000);
  std::atomic<int> wrong{0}, hits{0};
  const auto user = [&](KvTier& tier, unsigned seed) {
    std::mt19937 random(seed);
    for (int round = 0; round < 60; ++round) {
      std::vector<TestPage> some;
      for (int i = 0; i < 4; ++i) some.push_back(pages[random() % pages.size()]);
      write_all(tier, some);
      std::vector<TestPage> got;
      for (int i = 0; i < 8; ++i) got.push_back(pages[random() % pages.size()].blank());
      Outcomes outcomes;
      for (TestPage& page : got) tier.read(page.identity, page.runs(), outcomes.next());
      const auto results = outcomes.wait();
      for (size_t i = 0; i < got.size(); ++i) {
        if (results[i] != TierResult::kOk) continue;
        ++hits;
        TestPage wanted = got[i].blank();
        if (!(got[i] == wanted.fill())) ++wrong;
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed)
    threads.emplace_back(user, std::ref(seed % 2 ? *one : *two), seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 500);
  for (const auto* tier : {one.get(), two.get()}) {
    EXPECT_EQ(tier->stats().corrupt, 0u);
    EXPECT_EQ(tier->stats().failed, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, Conformance,
                         ::testing::Values(Medium{"memory", make_memory_world},
                                           Medium{"file", make_file_world},
                                           Medium{"redis", make_redis_world}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune::kv::testing
