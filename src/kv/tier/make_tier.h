// How a storage tier is opened.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "attune/status.h"
#include "kv/tier/kv_tier.h"

namespace attune::kv {

enum class TierKind : uint8_t { kFile, kRedis };

struct TierConfig {
  TierKind kind = TierKind::kFile;
  std::string dir;               // kFile; made when it is not there. Empty: default_storage_dir()
  std::string url;               // kRedis; see redis/url.h
  int64_t budget_bytes = 0;      // 0: no bound
  int threads = 0;               // 0: 4 for files, 2 for Redis
  int32_t max_queued = 1 << 16;  // reads and writes each; more are refused (kFull)
  double connect_seconds = 2, command_seconds = 5;  // kRedis: the longest one waits
  // All that decides what a stored page's bytes mean: model and revision, dtype, layout, page size,
  // head split, engine format. A page stored under another identity is never served.
  std::string identity;
};

// Errors: invalid_argument (URL, folder), unavailable (no such server, or it wants another
// password), io_error; each says what to do.
Result<std::unique_ptr<KvTier>> make_tier(const TierConfig& config);

// $XDG_CACHE_HOME/attune/hicache, else ~/.cache/attune/hicache, else /var/tmp/attune-hicache.
std::string default_storage_dir();

}  // namespace attune::kv
