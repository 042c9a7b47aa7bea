// The CPU device's workers. One caller at a time hands out a job; the caller works too, and run()
// returns when every part is done. Between jobs workers spin briefly (the next op of a model
// follows within microseconds) and then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace attune::base {

class ThreadPool {
 public:
  // `threads` workers in all, the caller of run() included; at least 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // fn(thread, size()) once on each thread. One of what they throw comes out of
  // run(), once all are done. Not reentrant.
  template <typename Fn>
  void run(Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    run_erased([](void* f, int thread, int size) { (*static_cast<F*>(f))(thread, size); },
               const_cast<std::remove_const_t<F>*>(&fn));
  }

  // fn(begin, end) over [0, count) in pieces of `grain`; pieces are the same whatever the number of
  // threads. Each thread takes a contiguous share of them in order (so that the memory they read
  // streams), then the last ones of threads that are behind (a neighbour may have their core). One
  // piece or one thread: no hand-over at all.
  template <typename Fn>
  void parallel_for(int64_t count, int64_t grain, Fn&& fn) {
    if (count <= 0) return;
    if (grain < 1) grain = 1;
    const auto piece = [&](int64_t i) {
      fn(i * grain, (i + 1) * grain < count ? (i + 1) * grain : count);
    };
    const int64_t pieces = (count + grain - 1) / grain;
    if (pieces == 1 || workers_.empty()) {
      for (int64_t i = 0; i < pieces; ++i) piece(i);
      return;
    }
    const int64_t threads = size();
    for (int64_t t = 0; t < threads; ++t)
      shares_[t].set(pieces * t / threads, pieces * (t + 1) / threads);
    run([&](int thread, int n) {
      for (int64_t i; (i = shares_[thread].take_first()) >= 0;) piece(i);
      for (int other = 1; other < n; ++other)
        for (int64_t i; (i = shares_[(thread + other) % n].take_last()) >= 0;) piece(i);
    });
  }

 private:
  using Job = void (*)(void*, int, int);

  // Pieces [first, end) not yet taken, in one word so that both ends change together.
  class alignas(64) Share {
   public:
    void set(int64_t first, int64_t end) {
      range_.store(uint64_t(first) << 32 | uint64_t(end), std::memory_order_relaxed);
    }
    int64_t take_first() {
      return take(uint64_t{1} << 32, [](uint64_t r) { return r >> 32; });
    }
    int64_t take_last() {
      return take(-uint64_t{1}, [](uint64_t r) { return (r & 0xffffffffu) - 1; });
    }

   private:
    // Adds `change` to the range and returns which(range), or -1 if it was empty.
    template <typename Which>
    int64_t take(uint64_t change, Which which) {
      uint64_t r = range_.load(std::memory_order_relaxed);
      while (r >> 32 < (r & 0xffffffffu))
        if (range_.compare_exchange_weak(r, r + change, std::memory_order_relaxed)) return which(r);
      return -1;
    }
    std::atomic<uint64_t> range_{0};
  };

  void run_erased(Job job, void* arg);
  void worker(int index);

  std::vector<std::thread> workers_;
  std::unique_ptr<Share[]> shares_;  // one per thread
  Job job_ = nullptr;
  void* arg_ = nullptr;
  alignas(64) std::atomic<uint64_t> epoch_{0};
  alignas(64) std::atomic<int> pending_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::exception_ptr error_;  // written under mutex_, read when nothing is pending
};

}  // namespace attune::base
