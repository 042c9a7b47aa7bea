#include "kv/tier/lru_ledger.h"

#include <iterator>
#include <utility>

namespace attune::kv {

bool LruLedger::reserve(int64_t bytes) {
  Lock lock(mutex_);
  if (budget_ > 0 && reserved_ + bytes > budget_) return false;
  reserved_ += bytes;
  return true;
}

void LruLedger::unreserve(int64_t bytes) {
  Lock lock(mutex_);
  reserved_ -= bytes;
}

void LruLedger::put(const PageKey& key, int64_t bytes, int64_t reserved) {
  Lock lock(mutex_);
  reserved_ -= reserved;
  if (scanning_) removed_.erase(key);
  const auto [at, fresh] = index_.try_emplace(key);
  if (fresh) {
    entries_.push_back({key, 0, 0});
    at->second = std::prev(entries_.end());
  } else {
    entries_.splice(entries_.end(), entries_, at->second);
  }
  Entry& entry = *at->second;
  held_ += bytes - entry.bytes;
  entry.bytes = bytes;
  entry.stamp = ++now_;
}

void LruLedger::erase(Entries::iterator entry) {
  if (scanning_) removed_.insert(entry->key);
  held_ -= entry->bytes;
  index_.erase(entry->key);
  entries_.erase(entry);
}

bool LruLedger::remove(const PageKey& key) {
  Lock lock(mutex_);
  const auto at = index_.find(key);
  if (at == index_.end()) {
    if (scanning_) removed_.insert(key);
    return false;
  }
  erase(at->second);
  return true;
}

void LruLedger::clear() {
  Lock lock(mutex_);
  while (!entries_.empty()) erase(entries_.begin());
}

std::optional<LruLedger::Victim> LruLedger::victim() const {
  Lock lock(mutex_);
  if (budget_ == 0 || held_ + reserved_ <= budget_ || entries_.empty()) return std::nullopt;
  return Victim{entries_.front().key, entries_.front().stamp};
}

bool LruLedger::evict(const Victim& victim) {
  Lock lock(mutex_);
  const auto at = index_.find(victim.key);
  if (at == index_.end() || at->second->stamp != victim.stamp) return false;
  erase(at->second);
  ++evicted_;
  return true;
}

void LruLedger::begin_scan() {
  Lock lock(mutex_);
  scanning_ = true;
  scan_start_ = now_;
  removed_.clear();
}

void LruLedger::end_scan(const std::vector<Seen>& seen) {
  Lock lock(mutex_);
  scanning_ = false;
  // What was used since stays, in its order: the end of the list.
  auto first_kept = entries_.begin();
  while (first_kept != entries_.end() && first_kept->stamp <= scan_start_) {
    held_ -= first_kept->bytes;
    index_.erase(first_kept->key);
    first_kept = entries_.erase(first_kept);
  }
  for (const Seen& page : seen) {
    if (removed_.contains(page.key)) continue;
    const auto [at, fresh] = index_.try_emplace(page.key);
    if (!fresh) continue;
    at->second = entries_.insert(first_kept, {page.key, page.bytes, scan_start_});
    held_ += page.bytes;
  }
  removed_.clear();
}

void LruLedger::abandon_scan() {
  Lock lock(mutex_);
  scanning_ = false;
  removed_.clear();
}

int64_t LruLedger::pages() const {
  Lock lock(mutex_);
  return std::ssize(entries_);
}
int64_t LruLedger::bytes() const {
  Lock lock(mutex_);
  return held_;
}
uint64_t LruLedger::evicted() const {
  Lock lock(mutex_);
  return evicted_;
}

}  // namespace attune::kv
