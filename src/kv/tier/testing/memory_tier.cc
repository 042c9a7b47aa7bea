#include "kv/tier/testing/memory_tier.h"

#include <utility>

#include "kv/tier/record.h"

namespace attune::kv::testing {

MemoryStore::MemoryStore(std::string root_salt) : root_salt_(std::move(root_salt)) {}

void MemoryStore::set_fault(std::function<Fault(Kind, const PageKey&)> fault) {
  std::lock_guard lock(mutex_);
  fault_ = std::move(fault);
}

MemoryStore::Fault MemoryStore::next_fault(Kind kind, const PageKey& key) {
  std::lock_guard lock(mutex_);
  return fault_ ? fault_(kind, key) : Fault::kNone;
}

void MemoryStore::hold() {
  std::lock_guard lock(mutex_);
  held_ = true;
}

void MemoryStore::let_go() {
  {
    std::lock_guard lock(mutex_);
    held_ = false;
  }
  changed_.notify_all();
}

void MemoryStore::wait_until_held(int threads) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return standing_ >= threads; });
}

void MemoryStore::stand() {
  std::unique_lock lock(mutex_);
  ++standing_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !held_; });
  --standing_;
}

std::optional<std::string> MemoryStore::get(const PageKey& key) const {
  std::lock_guard lock(mutex_);
  const auto at = records_.find(key);
  if (at == records_.end()) return std::nullopt;
  return at->second.bytes;
}

void MemoryStore::put(const PageKey& key, std::string record) {
  std::lock_guard lock(mutex_);
  records_[key] = {std::move(record), ++uses_};
}

bool MemoryStore::erase(const PageKey& key) {
  std::lock_guard lock(mutex_);
  return records_.erase(key) > 0;
}

void MemoryStore::touch(const PageKey& key) {
  std::lock_guard lock(mutex_);
  if (const auto at = records_.find(key); at != records_.end()) at->second.used = ++uses_;
}

std::vector<LruLedger::Seen> MemoryStore::by_use() const {
  std::lock_guard lock(mutex_);
  std::map<uint64_t, LruLedger::Seen> pages;
  for (const auto& [key, record] : records_) pages[record.used] = {key, std::ssize(record.bytes)};
  std::vector<LruLedger::Seen> sorted;
  for (const auto& [used, page] : pages) sorted.push_back(page);
  return sorted;
}

void MemoryStore::clear() {
  std::lock_guard lock(mutex_);
  records_.clear();
}

MemoryTier::MemoryTier(std::shared_ptr<MemoryStore> store, const TierConfig& config)
    : store_(std::move(store)),
      fingerprint_(record_fingerprint(config.identity)),
      ledger_(config.budget_bytes),
      info_{"memory", store_->root_salt(), true, true, config.budget_bytes},
      queue_({.threads = config.threads > 0 ? config.threads : 2, .max_queued = config.max_queued},
             [this](std::span<TierOp> ops) { perform(ops.front()); }) {
  for (const LruLedger::Seen& page : store_->by_use()) ledger_.put(page.key, page.bytes);
}

TierStats MemoryTier::stats() const {
  TierStats stats;
  stats.pages = ledger_.pages();
  stats.bytes = ledger_.bytes();
  stats.evicted = ledger_.evicted();
  queue_.add_stats(stats);
  return stats;
}

Status MemoryTier::clear() {
  return queue_.without_writes([this] {
    store_->clear();
    ledger_.clear();
    return Status();
  });
}

void MemoryTier::perform(TierOp& op) {
  store_->stand();
  if (op.kind == TierOp::Kind::kMatch) {
    int32_t found = 0;
    while (found < std::ssize(op.keys) && store_->get(op.keys[static_cast<size_t>(found)])) ++found;
    queue_.finish_match(op, found);
  } else {
    queue_.finish(op, op.kind == TierOp::Kind::kRead ? read_now(op) : write_now(op));
  }
}

TierResult MemoryTier::read_now(const TierOp& op) {
  const MemoryStore::Fault fault = store_->next_fault(op.kind, op.page.key);
  if (fault == MemoryStore::Fault::kFail) return TierResult::kFailed;
  if (fault == MemoryStore::Fault::kLose) store_->erase(op.page.key);
  std::optional<std::string> record = store_->get(op.page.key);
  if (record && fault == MemoryStore::Fault::kCorrupt) record->back() ^= 1;
  const bool right = record && scatter_record(*record, fingerprint_, op.page, op.runs);
  if (right) {
    ledger_.put(op.page.key, std::ssize(*record));
    store_->touch(op.page.key);
    return TierResult::kOk;
  }
  ledger_.remove(op.page.key);
  if (!record) return TierResult::kMiss;
  store_->erase(op.page.key);
  return TierResult::kCorrupt;
}

TierResult MemoryTier::write_now(const TierOp& op) {
  const MemoryStore::Fault fault = store_->next_fault(op.kind, op.page.key);
  if (fault == MemoryStore::Fault::kFail) return TierResult::kFailed;
  if (fault == MemoryStore::Fault::kFull) return TierResult::kFull;
  const int64_t reserved = op.runs.total() + kRecordOverhead;
  if (!ledger_.reserve(reserved)) return TierResult::kFull;
  while (const std::optional<LruLedger::Victim> victim = ledger_.victim())
    if (ledger_.evict(*victim)) store_->erase(victim->key);
  std::string record = gather_record(fingerprint_, op.page, op.runs);
  if (fault == MemoryStore::Fault::kCorrupt) record.back() ^= 1;
  ledger_.put(op.page.key, std::ssize(record), reserved);
  if (fault != MemoryStore::Fault::kLose) store_->put(op.page.key, std::move(record));
  return TierResult::kOk;
}

}  // namespace attune::kv::testing
