#include "attention/backends/cpu/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace attune::attention::cpu {
namespace {

struct Case {
  Limits limits;
  std::vector<std::pair<int32_t, int32_t>> seqs;  // q_len, kv_len
};

Schedule schedule_of(const Case& c) {
  std::vector<int32_t> q_indptr{0}, kv_len, page_indptr{0};
  for (const auto& [q, kv] : c.seqs) {
    q_indptr.push_back(q_indptr.back() + q);
    kv_len.push_back(kv);
    page_indptr.push_back(page_indptr.back() + (kv + 15) / 16);
  }
  static const std::vector<int32_t> slots(1 << 16, 1);
  const Batch batch{.num_seqs = static_cast<int32_t>(c.seqs.size()),
                    .num_tokens = q_indptr.back(),
                    .q_indptr = q_indptr.data(),
                    .kv_len = kv_len.data(),
                    .page_indptr = page_indptr.data(),
                    .page_slots = slots.data(),
                    .page_size = 16};
  Schedule s;
  make_schedule(batch, c.limits, kernels_avx2(), &s);
  return s;
}

Limits limits(int32_t q_heads, int32_t kv_heads, int32_t threads) {
  return {.max_seqs = 100,
          .max_tokens = 10000,
          .max_kv_len = 40000,
          .q_heads = q_heads,
          .kv_heads = kv_heads,
          .qk_dim = 64,
          .v_dim = 64,
          .page_size = 16,
          .num_slots = 10,
          .threads = threads};
}

// Every (row, head) in exactly one tile; every tile done whole or in all of its splits; partial
// results apart from each other and inside the area.
TEST(Schedule, CoversEverythingOnce) {
  for (const Case& c : {Case{limits(9, 3, 2), {{512, 512}}}, Case{limits(9, 3, 2), {{1, 5000}}},
                        Case{limits(64, 1, 4), {{3, 40000}, {0, 10}, {200, 300}, {1, 0}}},
                        Case{limits(130, 1, 2), {{2, 600}, {1, 1}}},
                        Case{limits(8, 8, 16), {{1, 40000}, {1, 40000}, {97, 1000}}}}) {
    const Schedule s = schedule_of(c);
    std::map<std::pair<int, int>, int> rows;
    int32_t tokens = 0;
    for (const auto& [q, kv] : c.seqs) tokens += q;
    for (const Tile& t : s.tiles) {
      EXPECT_LE(t.num_q * t.num_heads, kMaxRows);
      EXPECT_EQ(t.first_head / (c.limits.q_heads / c.limits.kv_heads), t.kv_head);
      for (int q = 0; q < t.num_q; ++q)
        for (int h = 0; h < t.num_heads; ++h) ++rows[{t.first_token + q, t.first_head + h}];
    }
    EXPECT_EQ(rows.size(), size_t(tokens) * c.limits.q_heads);
    for (const auto& [row, count] : rows) ASSERT_EQ(count, 1);
    std::vector<std::set<int>> done(s.tiles.size());
    for (const WorkItem& item : s.items) EXPECT_TRUE(done[item.tile].insert(item.split).second);
    int64_t used = 0;
    for (size_t i = 0; i < s.tiles.size(); ++i) {
      const Tile& t = s.tiles[i];
      const int splits = s.split_of[i].left;
      if (splits == 0) {
        EXPECT_EQ(done[i], std::set<int>{-1});
        continue;
      }
      EXPECT_EQ(splits, t.num_splits());
      EXPECT_EQ(done[i].size(), size_t(splits));
      EXPECT_EQ(*done[i].begin(), 0);
      EXPECT_EQ(s.split_of[i].partials, used);
      used += splits * kernels_avx2().partial_floats(t.num_q * t.num_heads, 64);
    }
    EXPECT_LE(used, partial_area_floats(c.limits, kernels_avx2()));
  }
}

TEST(Schedule, SplitsALongContextOnlyWhenThreadsWouldIdle) {
  const auto splits = [](const Schedule& s) {
    int n = 0;
    for (const SplitTile& t : s.split_of) n += t.left > 0;
    return n;
  };
  EXPECT_EQ(splits(schedule_of({limits(9, 3, 2), {{1, 5000}}})), 3);
  EXPECT_EQ(splits(schedule_of({limits(9, 3, 1), {{1, 5000}}})), 0);
  EXPECT_EQ(splits(schedule_of({limits(9, 3, 2), {{1, 500}}})), 0);
  const std::vector<std::pair<int32_t, int32_t>> many(32, {1, 5000});
  EXPECT_EQ(splits(schedule_of({limits(9, 3, 2), many})), 0);
  // One long one among many: it alone.
  auto mixed = std::vector<std::pair<int32_t, int32_t>>(8, {1, 600});
  mixed.push_back({1, 40000});
  EXPECT_EQ(splits(schedule_of({limits(9, 3, 2), mixed})), 3);
}

// MLA's 128 heads of one KV head make two tiles of one size, which share all keys of a context.
TEST(Schedule, HeadsInEvenTiles) {
  const Schedule s = schedule_of({limits(128, 1, 2), {{1, 4000}}});
  ASSERT_EQ(s.tiles.size(), 2u);
  for (const Tile& t : s.tiles) EXPECT_EQ(t.num_heads, 64);
  EXPECT_EQ(s.items.size(), 2u * 8u);
  EXPECT_EQ(schedule_of({limits(16, 1, 2), {{12, 4000}}}).tiles.size(), 2u);  // 6 queries each
}

TEST(Schedule, NumSplitsFixesTheParts) {
  for (int splits : {1, 2, 3, 7, 100}) {
    Limits l = limits(9, 3, 2);
    l.tuning.num_splits = splits;
    for (int kv_len : {1, 64, 65, 500, 5000, 40000}) {
      const int blocks = (kv_len + kBlock - 1) / kBlock;
      for (const Tile& t : schedule_of({l, {{1, kv_len}}}).tiles) {
        EXPECT_EQ(t.split_keys % kBlock, 0);
        EXPECT_LE(t.num_splits(), splits);
        EXPECT_GE(t.num_splits(), 1);
        // As near to it as whole blocks allow.
        EXPECT_GE(t.num_splits() * ((blocks + splits - 1) / splits), blocks);
      }
    }
    for (const Tile& t : schedule_of({l, {{1, splits * 2 * kBlock}}}).tiles)
      EXPECT_EQ(t.num_splits(), splits);
  }
}

TEST(Schedule, PackGqaOffGivesEachHeadTilesOfItsOwn) {
  Limits l = limits(8, 2, 2);
  l.tuning.pack_gqa = Toggle::kOff;
  const Schedule s = schedule_of({l, {{100, 200}}});
  EXPECT_EQ(s.tiles.size(), 8u * 2u);  // 96 queries and 4
  for (const Tile& t : s.tiles) EXPECT_EQ(t.num_heads, 1);
}

TEST(Schedule, LargeItemsFirst) {
  const Schedule s = schedule_of({limits(9, 3, 2), {{512, 512}, {1, 100}}});
  EXPECT_EQ(s.tiles[s.items.front().tile].first_q, 512 - 32);
  EXPECT_EQ(s.tiles[s.items.back().tile].num_q, 1);
}

}  // namespace
}  // namespace attune::attention::cpu
