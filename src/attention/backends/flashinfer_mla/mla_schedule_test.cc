// Properties of the schedules over random batches.
#include "attention/backends/flashinfer_mla/mla_schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <unordered_map>

namespace attune::attention::flashinfer_mla {
namespace {

constexpr int32_t kPoison = 0x55555555;

TEST(FlashinferMlaSchedule, EveryRowMeetsEveryKeyItSees) {
  std::mt19937 random(21);
  const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % n); };
  for (int round = 0; round < 60; ++round) {
    const int32_t heads[] = {8, 16, 20, 64, 128};
    ScheduleLimits l{.max_seqs = 1 + below(64),
                     .max_tokens = 0,
                     .heads = heads[below(5)],
                     .multiprocessors = 132};
    l.max_tokens = l.max_seqs + below(600);
    const bool prefill = round % 2;
    const int32_t seqs = 1 + below(l.max_seqs);
    std::vector<int32_t> q_indptr{0}, kv_len, page_indptr{0};
    Batch b;
    for (int32_t s = 0; s < seqs; ++s) {
      const int32_t room = (l.max_tokens - q_indptr.back()) / (seqs - s);
      const int32_t q = below(5) == 0 ? 0 : std::min(1 + below(prefill ? 200 : 2), room);
      kv_len.push_back(below(5) == 0 ? below(3) : q + below(below(4) == 0 ? 9000 : 200));
      q_indptr.push_back(q_indptr.back() + q);
      page_indptr.push_back(page_indptr.back() + (kv_len.back() + 63) / 64);
      b.max_q_len = std::max(b.max_q_len, q);
    }
    b.phase = prefill ? Phase::kPrefill : Phase::kDecode;
    b.num_seqs = seqs;
    b.num_tokens = q_indptr.back();
    b.q_indptr = q_indptr.data();
    b.kv_len = kv_len.data();
    b.page_indptr = page_indptr.data();
    SCOPED_TRACE(round);

    Scheduler scheduler(l);
    std::vector<int32_t> memory(max_schedule_elements(l), kPoison);
    const Schedule s = scheduler.make(b, memory.data());
    const auto work = [&](WorkArray a, int64_t i) { return memory[s.work[a] + i]; };
    EXPECT_EQ(memory[s.rows], b.num_tokens);
    EXPECT_LE(b.num_tokens, s.max_rows);
    EXPECT_EQ(memory[s.work_indptr], 0);
    const int32_t items = memory[s.work_indptr + s.clusters];
    ASSERT_LE(items, s.capacity);

    // By row of the output: the end of the keys that have been met, in order; and partial rows.
    const int32_t tile = 64 * s.cluster;
    std::unordered_map<int32_t, std::map<int32_t, int32_t>> keys;  // by row: begin to end
    std::unordered_map<int32_t, int32_t> partials;                 // partial row: output row
    std::map<int32_t, int32_t> direct;
    for (int32_t i = 0; i < items; ++i) {
      const int32_t rows = std::min(tile, work(kQLen, i) * l.heads - work(kQStart, i));
      ASSERT_GT(rows, 0);
      EXPECT_TRUE(work(kKvLen, i) == 0 || work(kQLen, i) <= work(kKvLen, i));
      for (int32_t r = 0; r < rows; ++r) {
        const int32_t row = work(kQIndptr, i) * l.heads + work(kQStart, i) + r;
        EXPECT_TRUE(keys[row].emplace(work(kKvStart, i), work(kKvEnd, i)).second);
        if (work(kPartialIndptr, i) < 0) {
          ++direct[row];
        } else {
          EXPECT_TRUE(partials.emplace(work(kPartialIndptr, i) + r, row).second);
        }
      }
    }
    EXPECT_LE(static_cast<int64_t>(partials.size()), max_partial_rows(l));
    std::map<int32_t, int32_t> merged;  // output row: partials that make it
    for (int32_t m = 0; m < l.multiprocessors; ++m) {
      const auto merge = [&](MergeArray a) { return memory[s.merge[a] + m]; };
      for (int32_t row = merge(kRowStart); row < merge(kRowEnd); ++row)
        for (int32_t p = merge(kPartialStart) + row - merge(kRowStart); p < merge(kPartialEnd);
             p += merge(kPartialStride)) {
          ASSERT_TRUE(partials.count(p));
          EXPECT_EQ(partials[p], row);
          ++merged[row];
        }
    }
    for (int32_t q = 0; q < seqs; ++q)
      for (int32_t i = q_indptr[q]; i < q_indptr[q + 1]; ++i) {
        // Query i's keys end here.
        const int32_t last = std::max(kv_len[q] - (q_indptr[q + 1] - 1 - i), 0);
        for (int32_t h = 0; h < l.heads; ++h) {
          const int32_t row = i * l.heads + h;
          int32_t met = 0;
          for (const auto& [begin, end] : keys[row]) {
            EXPECT_EQ(begin, met);
            met = end;
          }
          EXPECT_GE(met, last);
          EXPECT_LE(met, kv_len[q]);
          const auto parts = static_cast<int32_t>(keys[row].size());
          EXPECT_TRUE((parts == 1 && direct[row] == 1 && !merged.count(row)) ||
                      (merged[row] == parts && direct[row] == 0))
              << row;
        }
      }
    EXPECT_EQ(keys.size(), static_cast<size_t>(b.num_tokens) * l.heads);
  }
}

TEST(FlashinferMlaSchedule, WhatAGraphHasCapturedFollowsFromTheNumberOfSequences) {
  std::mt19937 random(22);
  const ScheduleLimits l{.max_seqs = 40, .max_tokens = 40, .heads = 16, .multiprocessors = 132};
  Scheduler scheduler(l);
  std::vector<int32_t> memory(max_schedule_elements(l));
  std::map<int32_t, Schedule> by_size;
  for (int round = 0; round < 300; ++round) {
    const int32_t seqs = 1 + static_cast<int32_t>(random() % 40);
    std::vector<int32_t> q_indptr{0}, kv_len, page_indptr{0};
    for (int32_t s = 0; s < seqs; ++s) {
      q_indptr.push_back(q_indptr.back() + static_cast<int32_t>(random() % 2));
      kv_len.push_back(static_cast<int32_t>(random() % 20000));
      page_indptr.push_back(page_indptr.back() + kv_len.back());
    }
    Batch b;
    b.phase = Phase::kDecode;
    b.num_seqs = seqs;
    b.num_tokens = q_indptr.back();
    b.max_q_len = 1;
    b.q_indptr = q_indptr.data();
    b.kv_len = kv_len.data();
    b.page_indptr = page_indptr.data();
    const Schedule s = scheduler.make(b, memory.data());
    const Schedule& first = by_size.emplace(seqs, s).first->second;
    EXPECT_EQ(std::tie(s.cluster, s.clusters, s.max_rows, s.work_indptr, s.merge, s.work),
              std::tie(first.cluster, first.clusters, first.max_rows, first.work_indptr,
                       first.merge, first.work));
  }
}

}  // namespace
}  // namespace attune::attention::flashinfer_mla
