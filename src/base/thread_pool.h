// The CPU device's workers. One caller at a time hands out a job; the caller works too, and run()
// returns when every part is done. Between jobs workers spin briefly (the next op of a model
// follows within microseconds) and then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
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

  // fn(thread, size()) once on each thread. fn must not throw. Not reentrant.
  template <typename Fn>
  void run(Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    run_erased([](void* f, int thread, int size) { (*static_cast<F*>(f))(thread, size); },
               const_cast<std::remove_const_t<F>*>(&fn));
  }

  // fn(begin, end) over [0, count) in pieces of `grain`, taken by whichever thread is free; pieces
  // are the same whatever the number of threads. One piece or one thread: no hand-over at all.
  template <typename Fn>
  void parallel_for(int64_t count, int64_t grain, Fn&& fn) {
    if (count <= 0) return;
    if (grain < 1) grain = 1;
    if (count <= grain || workers_.empty()) {
      for (int64_t b = 0; b < count; b += grain) fn(b, b + grain < count ? b + grain : count);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](int, int) {
      for (;;) {
        const int64_t b = next.fetch_add(grain, std::memory_order_relaxed);
        if (b >= count) return;
        fn(b, b + grain < count ? b + grain : count);
      }
    });
  }

 private:
  using Job = void (*)(void*, int, int);
  void run_erased(Job job, void* arg);
  void worker(int index);

  std::vector<std::thread> workers_;
  Job job_ = nullptr;
  void* arg_ = nullptr;
  alignas(64) std::atomic<uint64_t> epoch_{0};
  alignas(64) std::atomic<int> pending_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace attune::base
