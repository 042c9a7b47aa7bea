// What the scheduler has copied between the tiers of the KV cache beside the steps, as plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "attune/request.h"
#include "kv/layout/host_layout.h"
#include "kv/layout/page_key.h"

namespace attune::sched {

// How long a request waits for its pages to come from storage.
enum class PrefetchPolicy : uint8_t {
  kBestEffort,    // not at all: it takes what is there when it may run
  kWaitComplete,  // for all of them
  kTimeout,       // for all of them, or until cut_prefetch()
};

// Each copy has a number, by which on_copied() or on_matched() answers. Both ends stay as they are
// until then.
struct CacheWork {
  struct Save {
    uint64_t op;
    kv::PageCopy pages;  // device to host
  };
  struct Store {
    uint64_t op;
    kv::PageIdentity page;
    kv::HostSlot from;
  };
  struct Fetch {
    uint64_t op;
    kv::PageIdentity page;
    kv::HostSlot to;
  };
  // Which of a request's pages storage has.
  struct Match {
    uint64_t op;
    RequestId request;
    std::vector<kv::PageKey> keys;
  };
  std::vector<Save> saves;
  std::vector<Store> stores;
  std::vector<Fetch> fetches;
  std::vector<Match> matches;
  std::vector<uint64_t> cancelled;  // fetches that nobody waits for any more
  std::vector<RequestId> ended;     // whose prefetch is over

  bool empty() const {
    return saves.empty() && stores.empty() && fetches.empty() && matches.empty() &&
           cancelled.empty() && ended.empty();
  }
};

struct CacheConfig {
  bool enabled = false;
  bool write_back = false;
  bool storage = false;
  PrefetchPolicy prefetch = PrefetchPolicy::kBestEffort;
  bool always_load = false;          // what lies in the host; else where it is faster
  int32_t load_threshold = 10;       // tokens; fewer are computed again (SGLang's constant)
  int32_t prefetch_threshold = 256;  // tokens; fewer are not looked for in storage (SGLang's)
  int64_t page_bytes = 0;
};

// As measured; 0: not yet.
struct CacheRates {
  double load_bytes = 0;      // per second, host to device
  double prefill_tokens = 0;  // per second
};

}  // namespace attune::sched
