// Rows M1 to M4 and M7: which path a sequence of an MLA extend batch goes, and how prefixes are
// cut.
#include <gtest/gtest.h>

#include <random>

#include "attention/route.h"

namespace attune::attention {
namespace {

using Seqs = std::vector<int32_t>;

constexpr MlaPolicy kPolicy{.chunked_prefix = true, .capacity = 1000, .absorb_below = 100};

TEST(MlaPath, ARowForEachCase) {
  const struct {
    const char* row;
    int32_t new_tokens, prefix;
    bool chunked, one_path;
    Path want;
  } rows[] = {
      {"M1: no prefix", 1, 0, true, false, Path::kRagged},
      {"M1: no prefix, chunked prefix off", 500, 0, false, false, Path::kRagged},
      {"M1: no prefix, longer than the capacity", 2000, 0, true, false, Path::kRagged},
      {"M2: above the capacity", 100, 901, true, false, Path::kChunked},
      {"M3: just within it", 100, 900, true, false, Path::kOneShot},
      {"M4: few new tokens", 99, 900, true, false, Path::kAbsorbed},
      {"M4: few new tokens, however long the prefix", 99, 100000, true, false, Path::kAbsorbed},
      {"M4: chunked prefix off", 100, 900, false, false, Path::kAbsorbed},
      {"S12: one path serves all", 500, 0, true, true, Path::kAbsorbed},
  };
  for (const auto& row : rows) {
    MlaPolicy policy = kPolicy;
    policy.chunked_prefix = row.chunked;
    policy.one_path = row.one_path;
    EXPECT_EQ(mla_path(row.new_tokens, row.prefix, policy), row.want) << row.row;
  }
}

TEST(MlaPath, ABatchOfAllKindsIsSplitBySequence) {
  const std::vector<ExtendPart> parts = split_extend(
      {{300, 0}, {200, 500}, {50, 10}, {200, 2000}, {200, 300}, {1, 0}, {100, 100}}, kPolicy);
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts[0].path, Path::kRagged);
  EXPECT_EQ(parts[0].seqs, (Seqs{0, 5}));
  EXPECT_EQ(parts[1].path, Path::kOneShot);  // 700 keys; 500 more would not fit
  EXPECT_EQ(parts[1].seqs, (Seqs{1}));
  EXPECT_EQ(parts[2].path, Path::kOneShot);
  EXPECT_EQ(parts[2].seqs, (Seqs{4, 6}));
  EXPECT_EQ(parts[3].path, Path::kChunked);
  EXPECT_EQ(parts[3].seqs, (Seqs{3}));
  EXPECT_EQ(parts[4].path, Path::kAbsorbed);
  EXPECT_EQ(parts[4].seqs, (Seqs{2}));
}

TEST(MlaPath, ChunksCoverEveryPrefixOnceInOrderAndAreFull) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> prefixes(1 + random() % 6);
    int64_t total = 0;
    for (int32_t& p : prefixes) total += p = static_cast<int32_t>(random() % 300);
    const int64_t capacity = 1 + random() % 400;
    std::vector<int32_t> seen(prefixes.size(), 0);
    const std::vector<PrefixChunk> chunks = chunk_prefixes(prefixes, capacity);
    EXPECT_EQ(static_cast<int64_t>(chunks.size()), (total + capacity - 1) / capacity);
    for (size_t c = 0; c < chunks.size(); ++c) {
      int64_t keys = 0;
      for (const PrefixChunk::Range& r : chunks[c].ranges) {
        ASSERT_LT(r.begin, r.end);
        ASSERT_EQ(r.begin, seen[r.seq]);
        seen[r.seq] = r.end;
        keys += r.end - r.begin;
      }
      EXPECT_EQ(keys,
                c + 1 < chunks.size() ? capacity : total - capacity * static_cast<int64_t>(c));
    }
    EXPECT_EQ(seen, prefixes);
  }
}

}  // namespace
}  // namespace attune::attention
