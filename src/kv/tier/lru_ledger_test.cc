#include "kv/tier/lru_ledger.h"

#include <gtest/gtest.h>

#include <string>

namespace attune::kv {
namespace {

PageKey key(int n) {
  PageKey key;
  key.bytes[0] = static_cast<uint8_t>(n);
  return key;
}

// Pages from the oldest to the newest, which takes them out.
std::string order(LruLedger& ledger) {
  std::string out;
  while (const auto victim = ledger.victim()) {
    out += std::to_string(victim->key.bytes[0]) + " ";
    EXPECT_TRUE(ledger.evict(*victim));
  }
  return out;
}

TEST(LruLedger, TheOldestGoesUntilTheRestFits) {
  LruLedger ledger(30);
  for (int n : {1, 2, 3}) ledger.put(key(n), 10);
  EXPECT_FALSE(ledger.victim());
  ledger.put(key(1), 10);  // used
  EXPECT_TRUE(ledger.reserve(15));
  EXPECT_FALSE(ledger.reserve(16));
  EXPECT_EQ(order(ledger), "2 3 ");
  ledger.put(key(4), 12, 15);
  EXPECT_EQ(ledger.bytes(), 22);
  EXPECT_TRUE(ledger.reserve(30));
  EXPECT_EQ(order(ledger), "1 4 ");
  EXPECT_EQ(ledger.evicted(), 4u);
}

TEST(LruLedger, AVictimThatWasUsedMeanwhileStays) {
  LruLedger ledger(15);
  ledger.put(key(1), 10);
  ledger.put(key(2), 10);
  const auto victim = ledger.victim();
  ledger.put(key(1), 10);
  EXPECT_FALSE(ledger.evict(*victim));
  EXPECT_EQ(ledger.pages(), 2);
}

TEST(LruLedger, AScanKeepsWhatHappenedMeanwhile) {
  LruLedger ledger(1000);
  for (int n : {1, 2, 3, 4, 5}) ledger.put(key(n), 10);
  ledger.begin_scan();
  ledger.put(key(2), 10);  // used: now newer than what is seen
  ledger.put(key(6), 20);  // new, not seen
  ledger.remove(key(3));   // seen before it went
  ledger.remove(key(9));   // another server's, released here
  ledger.remove(key(4));
  ledger.put(key(4), 30);  // went and came back, bigger
  // 1 has vanished, 7 is another server's, older than 5.
  ledger.end_scan(
      {{key(7), 40}, {key(2), 10}, {key(3), 10}, {key(9), 10}, {key(4), 10}, {key(5), 11}});
  EXPECT_EQ(ledger.pages(), 5);
  EXPECT_EQ(ledger.bytes(), 40 + 11 + 10 + 20 + 30);
  EXPECT_TRUE(ledger.reserve(1000));
  EXPECT_EQ(order(ledger), "7 5 2 6 4 ");
  EXPECT_EQ(ledger.bytes(), 0);
}

TEST(LruLedger, AnAbandonedScanChangesNothing) {
  LruLedger ledger(0);
  ledger.put(key(1), 10);
  ledger.begin_scan();
  ledger.put(key(2), 10);
  ledger.abandon_scan();
  EXPECT_EQ(ledger.pages(), 2);
  EXPECT_EQ(ledger.bytes(), 20);
}

}  // namespace
}  // namespace attune::kv
