// A tier of KV pages below host memory. Everything is asynchronous: calls return at once, `done`
// runs on a thread of the tier, never inside the call, exactly once. Calls from any thread, also
// from within `done`, except clear() and destruction, which wait for those threads.
//
// A page is found by its key, and served only if the whole identity and a checksum are right. It
// becomes visible only when it is whole (written, synced, renamed): kOk of a write promises that a
// restart finds it, until it is evicted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attune/status.h"
#include "kv/layout/host_layout.h"
#include "kv/layout/page_key.h"

namespace attune::kv {

enum class TierResult : uint8_t {
  kOk,
  kMiss,       // not there, or no longer
  kCorrupt,    // torn, damaged or another page's: removed, counted, as good as a miss
  kFull,       // no room within the budget, on the medium, or in the queue
  kFailed,     // the medium failed, or took too long
  kCancelled,  // before it began
};

struct TierInfo {
  std::string name;       // "file", "redis"
  std::string root_salt;  // goes into every root key; kept by the storage itself
  bool survives_restart = false;
  bool shared = false;       // other servers may use it at the same time
  int64_t budget_bytes = 0;  // 0: no bound
};

struct TierStats {
  int64_t pages = 0, bytes = 0;  // held now, as far as known
  uint64_t hits = 0, misses = 0, written = 0, evicted = 0, corrupt = 0, failed = 0, full = 0;
  uint64_t read_bytes = 0, written_bytes = 0;
  double read_seconds = 0, write_seconds = 0;  // of work, summed over threads
  int64_t queued = 0;                          // operations not done
};

class KvTier {
 public:
  using Done = std::function<void(TierResult)>;
  virtual ~KvTier() = default;  // waits for what is under way; what is queued ends as kCancelled

  virtual const TierInfo& info() const = 0;
  virtual TierStats stats() const = 0;

  // How many of `keys` are there, counted from the first to the first that is not; a hint.
  virtual void match(std::vector<PageKey> keys, std::function<void(int32_t)> done) = 0;
  // `from` must stay as it is until `done`. Older pages go for it where the budget is used up.
  virtual void write(PageIdentity page, PageRuns from, Done done) = 0;
  // `to` must stay until `done`, and holds the page's bytes only after kOk. The number is for
  // cancel().
  virtual uint64_t read(PageIdentity page, PageRuns to, Done done) = 0;
  // A read that has not begun ends as kCancelled.
  virtual void cancel(uint64_t read) = 0;
  // Waits; drops every page. Writes that have not begun end as kCancelled.
  virtual Status clear() = 0;
};

}  // namespace attune::kv
