// A storage tier in memory, for tests, with switches for what storage does to people. Its records
// are those of the others, checked as theirs are.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/tier/kv_tier.h"
#include "kv/tier/lru_ledger.h"
#include "kv/tier/make_tier.h"
#include "kv/tier/work_queue.h"

namespace attune::kv::testing {

// The medium: outlives tiers, and several may share it. Thread-safe.
class MemoryStore {
 public:
  enum class Fault : uint8_t {
    kNone,
    kLose,     // a write is acknowledged and gone, a read finds nothing any more
    kCorrupt,  // a byte of the record changes
    kFail,     // nothing happens, kFailed
    kFull,     // of writes: kFull
  };
  using Kind = TierOp::Kind;

  explicit MemoryStore(std::string root_salt = "salt of the memory store");

  const std::string& root_salt() const { return root_salt_; }
  // What befalls the reads and writes from here on. Called on threads of tiers.
  void set_fault(std::function<Fault(Kind, const PageKey&)> fault);
  Fault next_fault(Kind kind, const PageKey& key);

  // Slow: between these no operation of any tier gets further than its beginning. Let go before a
  // tier dies.
  void hold();
  void let_go();
  void wait_until_held(int threads);  // at least so many stand still
  void stand();                       // on a tier's thread

  std::optional<std::string> get(const PageKey& key) const;
  void put(const PageKey& key, std::string record);
  bool erase(const PageKey& key);
  void touch(const PageKey& key);               // was used
  std::vector<LruLedger::Seen> by_use() const;  // oldest first
  void clear();

 private:
  const std::string root_salt_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  struct Record {
    std::string bytes;
    uint64_t used = 0;
  };
  std::map<PageKey, Record> records_;
  uint64_t uses_ = 0;
  std::function<Fault(Kind, const PageKey&)> fault_;
  bool held_ = false;
  int standing_ = 0;
};

class MemoryTier final : public KvTier {
 public:
  // Of `config`: budget_bytes, threads (2 unless told), max_queued, identity.
  MemoryTier(std::shared_ptr<MemoryStore> store, const TierConfig& config);

  const TierInfo& info() const override { return info_; }
  TierStats stats() const override;
  void match(std::vector<PageKey> keys, std::function<void(int32_t)> done) override {
    queue_.match(std::move(keys), std::move(done));
  }
  void write(PageIdentity page, PageRuns from, Done done) override {
    queue_.write(std::move(page), from, std::move(done));
  }
  uint64_t read(PageIdentity page, PageRuns to, Done done) override {
    return queue_.read(std::move(page), to, std::move(done));
  }
  void cancel(uint64_t read) override { queue_.cancel(read); }
  Status clear() override;

 private:
  void perform(TierOp& op);
  TierResult read_now(const TierOp& op);
  TierResult write_now(const TierOp& op);

  const std::shared_ptr<MemoryStore> store_;
  const PageKey fingerprint_;
  LruLedger ledger_;
  const TierInfo info_;
  WorkQueue queue_;
};

}  // namespace attune::kv::testing
