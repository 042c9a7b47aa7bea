// What a tier of this process knows to be stored, by last use, and what of its budget is taken.
// Every call is O(1) besides the scan's. Thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kv/layout/page_key.h"

namespace attune::kv {

struct PageKeyHash {
  size_t operator()(const PageKey& key) const {  // SHA-256: any eight bytes will do
    size_t h;
    std::memcpy(&h, key.bytes.data(), sizeof h);
    return h;
  }
};

class LruLedger {
 public:
  struct Seen {
    PageKey key;
    int64_t bytes = 0;
  };
  struct Victim {
    PageKey key;
    uint64_t stamp = 0;
  };

  explicit LruLedger(int64_t budget) : budget_(budget) {}  // 0: no bound

  // Takes `bytes` of the budget for pages to come; false: reservations have the rest.
  bool reserve(int64_t bytes);
  void unreserve(int64_t bytes);

  // The page is stored, and the newest; `reserved` of the reservations turn into it.
  void put(const PageKey& key, int64_t bytes, int64_t reserved = 0);
  bool remove(const PageKey& key);
  void clear();

  // The oldest page while pages and reservations are above the budget. evict() drops it unless it
  // was used or written in between, which it answers with false.
  std::optional<Victim> victim() const;
  bool evict(const Victim& victim);

  // A scan of the medium, one at a time: what was put or removed since begin_scan() stays so,
  // everything else becomes what was seen (oldest first).
  void begin_scan();
  void end_scan(const std::vector<Seen>& seen);
  void abandon_scan();

  int64_t pages() const;
  int64_t bytes() const;
  uint64_t evicted() const;

 private:
  struct Entry {
    PageKey key;
    int64_t bytes;
    uint64_t stamp;  // of the last use
  };
  using Entries = std::list<Entry>;  // oldest first
  using Lock = std::lock_guard<std::mutex>;

  void erase(Entries::iterator entry);

  const int64_t budget_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<PageKey, Entries::iterator, PageKeyHash> index_;
  int64_t held_ = 0, reserved_ = 0;
  uint64_t now_ = 0, evicted_ = 0;
  bool scanning_ = false;
  uint64_t scan_start_ = 0;
  std::unordered_set<PageKey, PageKeyHash> removed_;  // since scan_start_
};

}  // namespace attune::kv
