#include "kv/tier/make_tier.h"

#include <cstdlib>

#include "kv/tier/file/file_tier.h"
#include "kv/tier/redis/redis_tier.h"

namespace attune::kv {

std::string default_storage_dir() {
  // The XDG specification: what is not absolute counts as unset.
  const auto set = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr || value[0] != '/' ? "" : value;
  };
  if (const std::string cache = set("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/attune/hicache";
  if (const std::string home = set("HOME"); !home.empty()) return home + "/.cache/attune/hicache";
  return "/var/tmp/attune-hicache";
}

Result<std::unique_ptr<KvTier>> make_tier(const TierConfig& config) {
  if (config.kind == TierKind::kRedis) {
    ATTUNE_ASSIGN_OR_RETURN(std::unique_ptr<RedisTier> tier, RedisTier::create(config));
    return std::unique_ptr<KvTier>(std::move(tier));
  }
  ATTUNE_ASSIGN_OR_RETURN(std::unique_ptr<FileTier> tier, FileTier::create(config));
  return std::unique_ptr<KvTier>(std::move(tier));
}

}  // namespace attune::kv
