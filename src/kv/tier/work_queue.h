// What every tier does alike: operations wait here for the tier's threads, reads before writes, are
// counted, and end exactly once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kv/tier/kv_tier.h"

namespace attune::kv {

struct TierOp {
  // In the order of their turn.
  enum class Kind : uint8_t { kRefused, kMatch, kRead, kWrite };
  Kind kind = Kind::kMatch;
  uint64_t number = 0;
  PageIdentity page;          // kRead, kWrite
  PageRuns runs;              // kRead, kWrite
  std::vector<PageKey> keys;  // kMatch
  std::function<void(int32_t)> matched;
  KvTier::Done done;
  TierResult refusal = TierResult::kCancelled;  // kRefused
};

struct WorkQueueConfig {
  int threads = 1;
  int32_t max_queued = 1 << 16;         // reads and writes each
  int32_t max_batch = 1;                // matches or reads that go to perform() together
  int32_t max_write_batch = 1;          // writes likewise
  int64_t max_batch_bytes = INT64_MAX;  // of payload; one operation may be bigger
};

class WorkQueue {
 public:
  // On one of the threads, with at least one operation, all of one kind; calls finish() for each
  // read and write and finish_match() for each match.
  using Perform = std::function<void(std::span<TierOp>)>;

  WorkQueue(WorkQueueConfig config, Perform perform);
  ~WorkQueue();  // what is queued ends as kCancelled, what is under way is waited for

  // As the tier's own calls of these names.
  void match(std::vector<PageKey> keys, std::function<void(int32_t)> done);
  void write(PageIdentity page, PageRuns from, KvTier::Done done);
  uint64_t read(PageIdentity page, PageRuns to, KvTier::Done done);
  void cancel(uint64_t read);
  // Queued writes end as kCancelled, those under way are waited for, then `task` runs while no
  // write does.
  Status without_writes(const std::function<Status()>& task);

  void finish(TierOp& op, TierResult result);  // a read or write
  void finish_match(TierOp& op, int32_t found);

  void add_stats(TierStats& stats) const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr int kKinds = 4;

  uint64_t push(TierOp op);
  void work();
  bool may_run(int kind) const;
  std::vector<TierOp> take(int kind);
  void refuse(TierOp op, TierResult why);
  void refuse_all(TierOp::Kind kind);
  std::deque<TierOp>& queue(TierOp::Kind kind) { return queues_[static_cast<int>(kind)]; }

  const WorkQueueConfig config_;
  const Perform perform_;
  mutable std::mutex mutex_;
  std::condition_variable work_;     // something may run
  std::condition_variable changed_;  // a write is done
  std::deque<TierOp> queues_[kKinds];
  int writers_ = 0;  // threads at work on writes
  int holders_ = 0;  // of without_writes()
  uint64_t next_ = 1;
  bool stop_ = false;
  TierStats counts_;
  std::vector<std::thread> threads_;
};

}  // namespace attune::kv
