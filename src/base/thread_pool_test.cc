#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>

namespace attune::base {
namespace {

TEST(ThreadPool, EveryThreadRunsOncePerJob) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int round = 0; round < 2000; ++round) {
      std::vector<int> hits(threads, 0);
      pool.run([&](int t, int n) {
        EXPECT_EQ(n, threads);
        ++hits[t];
      });
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), threads);
    }
  }
}

TEST(ThreadPool, ParallelForCoversEveryIndexOnceInFixedPieces) {
  ThreadPool pool(3);
  for (int64_t count : {0, 1, 7, 64, 1001}) {
    std::vector<std::atomic<int>> seen(count);
    pool.parallel_for(count, 16, [&](int64_t b, int64_t e) {
      EXPECT_EQ(b % 16, 0);
      EXPECT_LE(e - b, 16);
      for (int64_t i = b; i < e; ++i) ++seen[i];
    });
    for (auto& s : seen) EXPECT_EQ(s.load(), 1);
  }
}

// A thread that is stuck in its first piece must not keep the others' work waiting.
TEST(ThreadPool, FreeThreadsTakeOverTheRestOfASlowOnes) {
  ThreadPool pool(3);
  std::atomic<int> done{0};
  pool.parallel_for(30, 1, [&](int64_t b, int64_t) {
    if (b == 0)
      while (done.load() < 29) std::this_thread::yield();
    ++done;
  });
  EXPECT_EQ(done.load(), 30);
}

TEST(ThreadPool, WakesSleepingWorkers) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1));  // long enough for the worker to sleep
    std::atomic<int> ran{0};
    pool.run([&](int, int) { ++ran; });
    EXPECT_EQ(ran.load(), 2);
  }
}

TEST(ThreadPool, WhatAPartThrowsComesOutOfRun) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int thrower = 0; thrower < threads; ++thrower) {
      EXPECT_THROW(pool.run([&](int thread, int) {
        if (thread == thrower) throw std::bad_alloc();
      }),
                   std::bad_alloc);
      std::atomic<int> sum{0};
      pool.parallel_for(10, 1, [&](int64_t begin, int64_t) { sum += static_cast<int>(begin); });
      EXPECT_EQ(sum, 45);
    }
  }
}

}  // namespace
}  // namespace attune::base
