// What changes on the server at once. KEYS: used, sizes, bytes (redis_tier.h); ARGV: the prefix of
// page keys, a page's KEY, then the script's own.
#pragma once

#include <string>

namespace attune::kv {

inline const std::string kScriptStart = R"(
local used, sizes, bytes, prefix, page = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local function forget(key)
  local size = redis.call('HGET', sizes, key)
  if size then
    redis.call('DECRBY', bytes, size)
    redis.call('HDEL', sizes, key)
  end
  redis.call('ZREM', used, key)
end
local function use(key)
  local now = redis.call('TIME')
  redis.call('ZADD', used, now[1] .. string.format('%06d', now[2]), key)
end
local function note(key, size)
  forget(key)
  redis.call('HSET', sizes, key, size)
  redis.call('INCRBY', bytes, size)
  use(key)
end
local function drop_oldest()
  local oldest = redis.call('ZRANGE', used, 0, 0)[1]
  if not oldest or oldest == page then return false end
  forget(oldest)
  redis.call('UNLINK', prefix .. oldest)
  return true
end
)";

// ARGV: size, budget. The page will be stored in the same transaction; older ones go for it. How
// many.
inline const std::string kNoteScript = kScriptStart + R"(
note(page, ARGV[3])
local budget, evicted = tonumber(ARGV[4]), 0
while budget > 0 and tonumber(redis.call('GET', bytes)) > budget and drop_oldest() do
  evicted = evicted + 1
end
return evicted
)";

// The page was read, or looked for in vain. One that nothing counts for (whoever stored it) is
// counted from now on.
inline const std::string kUseScript = kScriptStart + R"(
if redis.call('EXISTS', prefix .. page) == 0 then
  forget(page)
elseif redis.call('HEXISTS', sizes, page) == 1 then
  use(page)
else
  note(page, redis.call('STRLEN', prefix .. page))
end
return 1
)";

// ARGV: what the record starts with, or it stays.
inline const std::string kDropScript = kScriptStart + R"(
if redis.call('GETRANGE', prefix .. page, 0, #ARGV[3] - 1) ~= ARGV[3] and #ARGV[3] > 0 then return 0 end
forget(page)
return redis.call('UNLINK', prefix .. page)
)";

// ARGV: how many of the oldest go; how many went.
inline const std::string kTrimScript = kScriptStart + R"(
local gone = 0
while gone < tonumber(ARGV[3]) and drop_oldest() do gone = gone + 1 end
return gone
)";

}  // namespace attune::kv
