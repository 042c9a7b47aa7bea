// Properties of the schedules over random batches: what FlashInfer's kernels derive from them by
// themselves (how many chunks a sequence has, where its partial rows lie) must be what is in them.
#include "attention/backends/flashinfer/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "attention/backends/flashinfer/hopper_schedule.h"

namespace attune::attention::flashinfer {
namespace {

struct RandomBatch {
  RandomBatch(std::mt19937& random, const ScheduleLimits& l, Phase phase, int32_t max_q) {
    const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % n); };
    const int32_t seqs = 1 + below(l.max_seqs);
    q_indptr = page_indptr = {0};
    for (int32_t s = 0; s < seqs; ++s) {
      const int32_t room = (l.max_tokens - q_indptr.back()) / (seqs - s);
      const int32_t q = below(5) == 0 ? 0 : std::min(1 + below(max_q), room);
      const int32_t most = below(4) == 0 ? 9000 : 300;
      kv_len.push_back(below(6) == 0 ? 0 : q + below(most));
      q_indptr.push_back(q_indptr.back() + q);
      page_indptr.push_back(page_indptr.back() + (kv_len.back() + l.page_size - 1) / l.page_size +
                            below(3));
      batch.max_q_len = std::max(batch.max_q_len, q);
    }
    batch.phase = phase;
    batch.num_seqs = seqs;
    batch.num_tokens = q_indptr.back();
    batch.q_indptr = q_indptr.data();
    batch.kv_len = kv_len.data();
    batch.page_indptr = page_indptr.data();
    batch.page_size = l.page_size;
  }
  int32_t q_len(int32_t s) const { return q_indptr[s + 1] - q_indptr[s]; }

  Batch batch;
  std::vector<int32_t> q_indptr, kv_len, page_indptr;
};

ScheduleLimits random_limits(std::mt19937& random) {
  const int32_t kv_heads[] = {1, 2, 8, 32}, groups[] = {1, 3, 4, 8, 64}, pages[] = {1, 16, 64};
  ScheduleLimits l;
  l.kv_heads = kv_heads[random() % 4];
  l.q_heads = l.kv_heads * groups[random() % 5];
  l.page_size = pages[random() % 3];
  l.max_seqs = random() % 3 ? 8 : 200;
  l.max_tokens = l.max_seqs + static_cast<int32_t>(random() % 2000);
  l.multiprocessors = 132;
  l.row_blocks_per_sm = 4;
  l.max_tile = random() % 2 ? 64 : 128;
  return l;
}

struct View {
  View(const std::vector<char>& memory, const ScheduleLayout& at)
      : valid(reinterpret_cast<const bool*>(&memory[at.valid])),
        request(ints(memory, at.request)),
        q_tile(ints(memory, at.q_tile)),
        kv_chunk(ints(memory, at.kv_chunk)),
        chunk_tokens(*ints(memory, at.chunk_tokens)),
        rows(*ints(memory, at.rows)),
        o_indptr(ints(memory, at.o_indptr)),
        row_kv_len(ints(memory, at.row_kv_len)),
        merge_indptr(ints(memory, at.merge_indptr)) {}
  static const int32_t* ints(const std::vector<char>& memory, int64_t at) {
    return reinterpret_cast<const int32_t*>(&memory[at]);
  }
  const bool* valid;
  const int32_t *request, *q_tile, *kv_chunk;
  int32_t chunk_tokens, rows;
  const int32_t *o_indptr, *row_kv_len, *merge_indptr;
};

// ceil_div(max(kv_len, 1), chunk): how the kernels count.
int32_t chunks_of(int32_t kv_len, int32_t chunk) {
  return static_cast<int32_t>((int64_t{std::max(kv_len, 1)} + chunk - 1) / chunk);
}

TEST(FlashinferSchedule, TilesAndChunksCoverEveryBatch) {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    const ScheduleLimits l = random_limits(random);
    const Phase phases[] = {Phase::kPrefill, Phase::kDecode, Phase::kVerify};
    const Phase phase = phases[round % 3];
    const RandomBatch made(random, l, phase, phase == Phase::kPrefill ? 700 : 1 + round % 8);
    const Batch& b = made.batch;
    const Split split = round % 2 ? Split::kAuto : Split::kNever;
    const ScheduleLayout layout = schedule_layout(l);
    std::vector<char> memory(layout.bytes, 0x55);
    const Schedule s = schedule_tiles(b, l, split, layout, memory.data());
    EXPECT_LE(s.tile, l.max_tile);
    const View v(memory, layout);
    SCOPED_TRACE(round);

    ASSERT_LE(s.blocks, layout.max_blocks);
    EXPECT_EQ(v.rows, b.num_tokens);
    EXPECT_LE(b.num_tokens, s.max_rows);
    std::set<std::tuple<int32_t, int32_t, int32_t>> blocks;
    for (int32_t i = 0; i < s.blocks; ++i)
      EXPECT_TRUE(!v.valid[i] || blocks.insert({v.request[i], v.q_tile[i], v.kv_chunk[i]}).second);
    int64_t want = 0;
    for (int32_t q = 0; q < b.num_seqs; ++q) {
      const int32_t rows = made.q_len(q) * l.group();
      const int32_t chunks = chunks_of(b.kv_len[q], v.chunk_tokens);
      EXPECT_TRUE(s.split || chunks == 1);
      for (int32_t t = 0; t * s.tile < rows; ++t)
        for (int32_t c = 0; c < chunks; ++c, ++want) EXPECT_TRUE(blocks.count({q, t, c}));
      EXPECT_EQ(v.o_indptr[q + 1] - v.o_indptr[q], made.q_len(q) * chunks);
      for (int32_t r = b.q_indptr[q]; s.split && r < b.q_indptr[q + 1]; ++r) {
        EXPECT_EQ(v.merge_indptr[r], v.o_indptr[q] + (r - b.q_indptr[q]) * chunks);
        EXPECT_EQ(v.merge_indptr[r + 1] - v.merge_indptr[r], chunks);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(blocks.size()), std::max<int64_t>(want, 1));
    EXPECT_TRUE(!s.split || v.o_indptr[b.num_seqs] <= max_partial_rows(l));
    EXPECT_TRUE(split == Split::kAuto || !s.split);
  }
}

TEST(FlashinferSchedule, WhatAGraphHasCapturedFollowsFromTheNumberOfSequences) {
  std::mt19937 random(12);
  for (int round = 0; round < 100; ++round) {
    const ScheduleLimits l = random_limits(random);
    std::map<int32_t, Schedule> tiles, rows;
    const ScheduleLayout layout = schedule_layout(l);
    std::vector<char> memory(layout.bytes);
    for (int i = 0; i < 30; ++i) {
      RandomBatch made(random, l, Phase::kDecode, 1);
      made.batch.max_q_len = 1;
      const Schedule t = schedule_tiles(made.batch, l, Split::kAuto, layout, memory.data());
      const Schedule& first = tiles.emplace(made.batch.num_seqs, t).first->second;
      EXPECT_EQ(std::tie(t.tile, t.blocks, t.max_rows, t.split),
                std::tie(first.tile, first.blocks, first.max_rows, first.split));
    }
  }
}

TEST(FlashinferSchedule, RowsAreTheSequencesThatHaveOne) {
  std::mt19937 random(13);
  for (int round = 0; round < 200; ++round) {
    ScheduleLimits l = random_limits(random);
    l.q_heads = l.kv_heads;
    const RandomBatch made(random, l, Phase::kDecode, 1);
    const Batch& b = made.batch;
    const ScheduleLayout layout = schedule_layout(l);
    std::vector<char> memory(layout.bytes, 0x55);
    const Schedule s = schedule_rows(b, l, layout, memory.data());
    const View v(memory, layout);
    std::set<std::pair<int32_t, int32_t>> blocks;
    for (int32_t i = 0; i < s.blocks; ++i)
      EXPECT_TRUE(!v.valid[i] || blocks.insert({v.request[i], v.kv_chunk[i]}).second);
    int32_t row = 0;
    int64_t want = 0;
    for (int32_t q = 0; q < b.num_seqs; ++q) {
      if (made.q_len(q) == 0) continue;
      EXPECT_EQ(v.row_kv_len[row], b.kv_len[q]);
      EXPECT_EQ(v.o_indptr[row], b.page_indptr[q]);
      const int32_t chunks = chunks_of(b.kv_len[q], v.chunk_tokens);
      for (int32_t c = 0; c < chunks; ++c, ++want) EXPECT_TRUE(blocks.count({row, c}));
      EXPECT_EQ(v.merge_indptr[row + 1] - v.merge_indptr[row], chunks);
      ++row;
    }
    EXPECT_EQ(static_cast<int64_t>(blocks.size()), want);
    EXPECT_EQ(v.o_indptr[b.num_seqs], b.page_indptr[b.num_seqs]);
    EXPECT_EQ(v.rows, row);
    // Not split, a block's number is its row's.
    for (int32_t i = 0; !s.split && i < row; ++i) EXPECT_EQ(v.request[i], i);
    EXPECT_TRUE(!s.split || v.merge_indptr[row] <= max_partial_rows(l));
  }
}

TEST(FlashinferSchedule, HopperDoesEveryTileOfEveryHeadOnce) {
  std::mt19937 random(14);
  for (int round = 0; round < 20; ++round) {
    const ScheduleLimits l = random_limits(random);
    const RandomBatch made(random, l, Phase::kPrefill, 900);
    const int32_t tile = round % 2 ? 128 : 192;
    HopperScheduler scheduler(l, tile);
    std::vector<int32_t> memory(scheduler.max_elements(), 0x55555555);
    const HopperSchedule s = scheduler.make(made.batch, memory.data());
    const auto at = [&](HopperArray a, int64_t i) { return memory[s.arrays[a] + i]; };
    const int32_t items = memory[s.work_indptr + l.multiprocessors];
    std::set<std::tuple<int32_t, int32_t, int32_t>> seen;
    for (int32_t i = 0; i < items; ++i)
      EXPECT_TRUE(seen.insert({at(kQIndptr, i), at(kQTile, i), at(kHead, i)}).second);
    int64_t want = 0;
    for (int32_t q = 0; q < made.batch.num_seqs; ++q)
      for (int32_t t = 0; t * tile < made.q_len(q); ++t)
        for (int32_t h = 0; h < l.q_heads; ++h, ++want)
          EXPECT_TRUE(seen.count({made.q_indptr[q], t, h}));
    EXPECT_EQ(items, want);
    for (int32_t i = 0; i < l.multiprocessors; ++i)
      EXPECT_LE(memory[s.work_indptr + i], memory[s.work_indptr + i + 1]);
  }
}

}  // namespace
}  // namespace attune::attention::flashinfer
