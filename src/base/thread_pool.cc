#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/check.h"

namespace attune::base {
namespace {

// About 50 microseconds: longer than the gap between two ops of a step, shorter than a scheduler
// tick.
constexpr int kSpins = 2000;

}  // namespace

ThreadPool::ThreadPool(int threads) {
  ATTUNE_CHECK(threads >= 1);
  shares_ = std::make_unique<Share[]>(threads);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    epoch_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::run_erased(Job job, void* arg) {
  if (workers_.empty()) return job(arg, 0, 1);
  job_ = job;
  arg_ = arg;
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1);  // publishes job_ and arg_
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  std::exception_ptr error;
  try {
    job(arg, 0, size());
  } catch (...) {
    error = std::current_exception();
  }
  // The parts are of like size, so the others end soon; yield in case they were not even scheduled.
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }
  if (std::exception_ptr theirs = std::exchange(error_, nullptr)) error = std::move(theirs);
  if (error) std::rethrow_exception(error);
}

void ThreadPool::worker(int index) {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        _mm_pause();
        continue;
      }
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return epoch_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    try {
      job_(arg_, index, size());
    } catch (...) {
      std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    pending_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace attune::base
