#include "kv/tier/work_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/guard.h"
#include "base/log.h"

namespace attune::kv {
namespace {

using Kind = TierOp::Kind;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

WorkQueue::WorkQueue(WorkQueueConfig config, Perform perform)
    : config_(std::move(config)), perform_(std::move(perform)) {
  for (int i = 0; i < config_.threads; ++i) threads_.emplace_back([this] { work(); });
}

WorkQueue::~WorkQueue() {
  {
    Lock lock(mutex_);
    stop_ = true;
    for (Kind kind : {Kind::kMatch, Kind::kRead, Kind::kWrite}) refuse_all(kind);
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkQueue::match(std::vector<PageKey> keys, std::function<void(int32_t)> done) {
  push({.kind = Kind::kMatch, .keys = std::move(keys), .matched = std::move(done)});
}

void WorkQueue::write(PageIdentity page, PageRuns from, KvTier::Done done) {
  push({.kind = Kind::kWrite, .page = std::move(page), .runs = from, .done = std::move(done)});
}

uint64_t WorkQueue::read(PageIdentity page, PageRuns to, KvTier::Done done) {
  return push({.kind = Kind::kRead, .page = std::move(page), .runs = to, .done = std::move(done)});
}

uint64_t WorkQueue::push(TierOp op) {
  Lock lock(mutex_);
  const uint64_t number = op.number = next_++;
  if (stop_) {
    refuse(std::move(op), TierResult::kCancelled);
  } else if (std::ssize(queue(op.kind)) >= config_.max_queued) {
    refuse(std::move(op), TierResult::kFull);
  } else {
    queue(op.kind).push_back(std::move(op));
  }
  lock.unlock();
  work_.notify_one();
  return number;
}

void WorkQueue::refuse(TierOp op, TierResult why) {
  op.refusal = why;
  queue(Kind::kRefused).push_back(std::move(op));
}

void WorkQueue::refuse_all(Kind kind) {
  for (TierOp& op : queue(kind)) refuse(std::move(op), TierResult::kCancelled);
  queue(kind).clear();
}

void WorkQueue::cancel(uint64_t read) {
  Lock lock(mutex_);
  std::deque<TierOp>& reads = queue(Kind::kRead);
  // Numbers rise along the queue.
  const auto at = std::lower_bound(reads.begin(), reads.end(), read,
                                   [](const TierOp& op, uint64_t n) { return op.number < n; });
  if (at == reads.end() || at->number != read) return;
  refuse(std::move(*at), TierResult::kCancelled);
  reads.erase(at);
  lock.unlock();
  work_.notify_one();
}

Status WorkQueue::without_writes(const std::function<Status()>& task) {
  {
    Lock lock(mutex_);
    ++holders_;
    refuse_all(Kind::kWrite);
    work_.notify_all();
    changed_.wait(lock, [this] { return writers_ == 0; });
  }
  Status status = task();
  {
    Lock lock(mutex_);
    --holders_;
  }
  work_.notify_all();
  return status;
}

// Of several threads one is kept from writes, so that a read never waits for their syncs.
bool WorkQueue::may_run(int kind) const {
  if (queues_[kind].empty()) return false;
  if (kind != static_cast<int>(Kind::kWrite)) return true;
  return holders_ == 0 && writers_ < std::max(1, config_.threads - 1);
}

// An equal share for each thread that may work on this kind, within the limits of a batch.
std::vector<TierOp> WorkQueue::take(int kind) {
  std::deque<TierOp>& from = queues_[kind];
  const bool write = kind == static_cast<int>(Kind::kWrite);
  const int64_t threads = write ? std::max(1, config_.threads - 1) : config_.threads;
  int64_t most = write ? config_.max_write_batch : config_.max_batch;
  if (kind == static_cast<int>(Kind::kRefused)) most = 1;
  most = std::min(most, (std::ssize(from) + threads - 1) / threads);
  std::vector<TierOp> batch;
  int64_t bytes = 0;
  while (std::ssize(batch) < most) {
    bytes += from.front().runs.total();
    if (!batch.empty() && bytes > config_.max_batch_bytes) break;
    batch.push_back(std::move(from.front()));
    from.pop_front();
  }
  return batch;
}

void WorkQueue::work() {
  Lock lock(mutex_);
  for (;;) {
    int kind = 0;
    const auto next = [&] {
      for (kind = 0; kind < kKinds; ++kind)
        if (may_run(kind)) return true;
      return stop_;
    };
    work_.wait(lock, next);
    if (kind == kKinds) return;  // stopped, and nothing is left
    std::vector<TierOp> batch = take(kind);
    const bool write = kind == static_cast<int>(Kind::kWrite);
    if (write) ++writers_;
    lock.unlock();

    const auto start = std::chrono::steady_clock::now();
    if (kind == static_cast<int>(Kind::kRefused)) {
      TierOp& op = batch.front();
      if (op.matched) finish_match(op, 0);
      if (op.done) finish(op, op.refusal);
    } else if (const Status status = base::guarded([&] { perform_(batch); }); !status.ok()) {
      base::log_error("storage tier: ", status.message());
      for (TierOp& op : batch) {
        if (op.matched) finish_match(op, 0);
        if (op.done) finish(op, TierResult::kFailed);
      }
    }
    batch.clear();  // callbacks go before the lock is taken

    lock.lock();
    if (kind == static_cast<int>(Kind::kRead)) counts_.read_seconds += seconds_since(start);
    if (write) {
      counts_.write_seconds += seconds_since(start);
      --writers_;
      changed_.notify_all();
      work_.notify_all();  // the place among the writers
    }
  }
}

void WorkQueue::finish(TierOp& op, TierResult result) {
  const bool read = op.kind == Kind::kRead;
  {
    Lock lock(mutex_);
    if (result == TierResult::kOk) {
      ++(read ? counts_.hits : counts_.written);
      (read ? counts_.read_bytes : counts_.written_bytes) += static_cast<uint64_t>(op.runs.total());
    } else if (result == TierResult::kMiss) {
      ++counts_.misses;
    } else if (result == TierResult::kCorrupt) {
      ++counts_.corrupt;
    } else if (result == TierResult::kFailed) {
      ++counts_.failed;
    } else if (result == TierResult::kFull) {
      ++counts_.full;
    }
  }
  const KvTier::Done done = std::exchange(op.done, nullptr);
  done(result);
}

void WorkQueue::finish_match(TierOp& op, int32_t found) {
  if (op.kind == Kind::kMatch && found < std::ssize(op.keys)) {
    Lock lock(mutex_);
    ++counts_.misses;
  }
  const std::function<void(int32_t)> matched = std::exchange(op.matched, nullptr);
  matched(found);
}

void WorkQueue::add_stats(TierStats& stats) const {
  Lock lock(mutex_);
  const TierStats own = stats;
  stats = counts_;
  stats.pages = own.pages;
  stats.bytes = own.bytes;
  stats.evicted = own.evicted;
  for (const std::deque<TierOp>& queue : queues_) stats.queued += std::ssize(queue);
}

}  // namespace attune::kv
