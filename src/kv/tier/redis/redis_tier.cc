#include "kv/tier/redis/redis_tier.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kv/tier/digits.h"
#include "kv/tier/record.h"
#include "kv/tier/redis/scripts.h"

namespace attune::kv {
namespace {

constexpr std::string_view kSalt = "attune:kv:salt",
                           kPages = "attune:kv:p:", kUsed = "attune:kv:used",
                           kSizes = "attune:kv:sizes", kBytes = "attune:kv:bytes";
constexpr int32_t kBatch = 32;               // operations in one round trip
constexpr int64_t kBatchBytes = 16LL << 20;  // of their payload
constexpr size_t kChunk = 512;               // keys in one round trip

std::string page_name(const PageKey& key) {
  return std::string(kPages) + hex_digits(key);
}

void send_script(RedisConnection& redis, std::string_view script, std::string_view page,
                 std::string_view a = {}, std::string_view b = {}) {
  redis.send({"EVAL", script, "3", kUsed, kSizes, kBytes, kPages, page, a, b});
}

// A server that refuses scripts would keep pages that nothing counts for.
Status try_script(RedisConnection& redis, const std::string& where) {
  send_script(redis, kUseScript, "none");
  ATTUNE_ASSIGN_OR_RETURN(const RedisReply reply, redis.next());
  if (reply.kind != RedisReply::Kind::kError) return {};
  return invalid_argument(base::cat("the Redis server at ", where, " does not run our scripts: ",
                                    reply.text, "; allow EVAL and all commands on attune:kv:*"));
}

// Of the server, whoever makes it first.
Result<std::string> find_salt(RedisConnection& redis, const std::string& where) {
  ATTUNE_ASSIGN_OR_RETURN(const std::string fresh, random_hex_digits(32));
  ATTUNE_ASSIGN_OR_RETURN(const RedisReply made, redis.ask({"SET", kSalt, fresh, "NX"}));
  if (made.kind == RedisReply::Kind::kError)
    return invalid_argument(base::cat("the Redis server at ", where,
                                      " does not let itself be written to: ", made.text,
                                      "; name one that does with --hicache-storage-url"));
  ATTUNE_ASSIGN_OR_RETURN(const RedisReply salt, redis.ask({"GET", kSalt}));
  if (salt.kind != RedisReply::Kind::kText || salt.text.empty())
    return data_loss(base::cat("the Redis server at ", where, " has no root salt in ", kSalt,
                               ": remove that key"));
  return std::string(salt.text);
}

}  // namespace

Result<std::unique_ptr<RedisTier>> RedisTier::create(const TierConfig& config) {
  const SigpipeBlocked blocked;
  ATTUNE_ASSIGN_OR_RETURN(const RedisUrl url, parse_redis_url(config.url));
  ATTUNE_ASSIGN_OR_RETURN(
      std::unique_ptr<RedisConnection> redis,
      RedisConnection::open(url, {config.connect_seconds, config.command_seconds}));
  ATTUNE_ASSIGN_OR_RETURN(std::string salt, find_salt(*redis, url.where()));
  ATTUNE_RETURN_IF_ERROR(try_script(*redis, url.where()));
  std::unique_ptr<RedisTier> tier(new RedisTier(config, url, std::move(salt)));
  tier->send_counts(*redis);
  tier->take_counts(*redis);
  tier->pool_.give(std::move(redis));
  return tier;
}

RedisTier::RedisTier(const TierConfig& config, const RedisUrl& url, std::string root_salt)
    : config_(config),
      fingerprint_(record_fingerprint(config.identity)),
      info_{"redis", std::move(root_salt), true, true, config.budget_bytes},
      pool_(url, {config.connect_seconds, config.command_seconds},
            [this](RedisConnection& redis) { return keep_salt(redis); }),
      queue_({.threads = config.threads > 0 ? config.threads : 2,
              .max_queued = config.max_queued,
              .max_batch = kBatch,
              .max_write_batch = kBatch,
              .max_batch_bytes = kBatchBytes},
             [this](std::span<TierOp> ops) {
               const SigpipeBlocked blocked;
               perform(ops);
             }) {}

// A server that has started again empty takes ours, so that servers of ours that come later agree
// with it.
Status RedisTier::keep_salt(RedisConnection& redis) {
  const Result<RedisReply> set = redis.ask({"SET", kSalt, info_.root_salt, "NX"});
  return set.ok() ? Status() : set.status();
}

TierStats RedisTier::stats() const {
  TierStats stats;
  stats.pages = pages_;
  stats.bytes = bytes_;
  stats.evicted = evicted_;
  queue_.add_stats(stats);
  return stats;
}

void RedisTier::perform(std::span<TierOp> ops) {
  Result<std::unique_ptr<RedisConnection>> redis = pool_.take();
  if (!redis.ok()) {
    complain(redis.status().message());
    for (TierOp& op : ops) {
      if (op.matched) queue_.finish_match(op, 0);
      if (op.done) queue_.finish(op, TierResult::kFailed);
    }
    return;
  }
  switch (ops.front().kind) {
    case TierOp::Kind::kMatch:
      for (TierOp& op : ops) queue_.finish_match(op, match_now(**redis, op.keys));
      break;
    case TierOp::Kind::kRead:
      read_now(**redis, ops);
      break;
    default:
      write_now(**redis, ops);
      break;
  }
  pool_.give(std::move(*redis));
}

int32_t RedisTier::match_now(RedisConnection& redis, const std::vector<PageKey>& keys) {
  for (size_t first = 0; first < keys.size(); first += kChunk) {
    const size_t end = std::min(first + kChunk, keys.size());
    for (size_t i = first; i < end; ++i) redis.send({"EXISTS", page_name(keys[i])});
    size_t found = first;
    bool whole = true;
    for (size_t i = first; i < end; ++i) {  // every reply has to be taken
      const Result<RedisReply> reply = redis.next();
      whole =
          whole && reply.ok() && reply->kind == RedisReply::Kind::kInteger && reply->integer == 1;
      if (whole) found = i + 1;
    }
    if (!whole) return static_cast<int32_t>(found);
  }
  return static_cast<int32_t>(keys.size());
}

void RedisTier::drop(RedisConnection& redis, const PageKey& key,
                     std::string_view only_if_starts_with) {
  send_script(redis, kDropScript, hex_digits(key), only_if_starts_with);
}

void RedisTier::read_now(RedisConnection& redis, std::span<TierOp> ops) {
  for (const TierOp& op : ops) {
    redis.send({"GET", page_name(op.page.key)});
    send_script(redis, kUseScript, hex_digits(op.page.key));
  }
  send_counts(redis);
  std::vector<Damaged> damaged;
  for (TierOp& op : ops) {
    const Result<RedisReply> record = redis.next();
    const Result<RedisReply> used = redis.next();
    const TierResult result = take_record(op, record);
    if (result == TierResult::kCorrupt)
      damaged.push_back({&op, std::string(record->text.substr(0, kRecordOverhead))});
    else
      queue_.finish(op, result);
  }
  take_counts(redis);
  if (!damaged.empty()) drop_damaged(redis, damaged);
}

TierResult RedisTier::take_record(const TierOp& op, const Result<RedisReply>& record) {
  if (!record.ok()) {
    complain(record.status().message());
    return TierResult::kFailed;
  }
  if (record->kind == RedisReply::Kind::kNil) return TierResult::kMiss;
  if (record->kind != RedisReply::Kind::kText) return refused(record->text);
  return scatter_record(record->text, fingerprint_, op.page, op.runs) ? TierResult::kOk
                                                                      : TierResult::kCorrupt;
}

// What has another beginning by now is another server's, written meanwhile.
void RedisTier::drop_damaged(RedisConnection& redis, std::span<Damaged> damaged) {
  for (const Damaged& record : damaged) drop(redis, record.op->page.key, record.start);
  send_counts(redis);
  for (const Damaged& record : damaged) {
    const Result<RedisReply> dropped = redis.next();
    queue_.finish(*record.op, TierResult::kCorrupt);
  }
  take_counts(redis);
}

void RedisTier::write_now(RedisConnection& redis, std::span<TierOp> ops) {
  const auto fits = [this](const TierOp& op) {
    return config_.budget_bytes == 0 || op.runs.total() + kRecordOverhead <= config_.budget_bytes;
  };
  for (const TierOp& op : ops)
    if (fits(op)) send_write(redis, op);
  send_counts(redis);
  std::vector<TierResult> results;
  for (const TierOp& op : ops)
    results.push_back(fits(op) ? take_written(redis) : TierResult::kFull);
  take_counts(redis);
  for (size_t i = 0; i < ops.size(); ++i) queue_.finish(ops[i], results[i]);
}

void RedisTier::send_write(RedisConnection& redis, const TierOp& op) {
  const std::string record = gather_record(fingerprint_, op.page, op.runs);
  redis.send({"MULTI"});
  send_script(redis, kNoteScript, hex_digits(op.page.key), std::to_string(record.size()),
              std::to_string(config_.budget_bytes));
  redis.send({"SET", page_name(op.page.key), record});
  redis.send({"EXEC"});
}

TierResult RedisTier::take_written(RedisConnection& redis) {
  std::string error;
  Result<RedisReply> reply = redis.next();
  for (int left = 3; left > 0 && reply.ok(); --left) {  // of MULTI, EVAL, SET; then EXEC's
    if (reply->kind == RedisReply::Kind::kError && error.empty()) error = reply->text;
    reply = redis.next();
  }
  if (!reply.ok()) {
    complain(reply.status().message());
    return TierResult::kFailed;
  }
  if (reply->kind == RedisReply::Kind::kError && error.empty()) error = reply->text;
  for (const RedisReply& part : reply->list)
    if (part.kind == RedisReply::Kind::kError && error.empty()) error = part.text;
  if (!error.empty() || reply->list.size() != 2) return refused(error);
  evicted_ += static_cast<uint64_t>(reply->list[0].integer);
  return TierResult::kOk;
}

Status RedisTier::clear() {
  return queue_.without_writes([this]() -> Status {
    const SigpipeBlocked blocked;
    ATTUNE_ASSIGN_OR_RETURN(std::unique_ptr<RedisConnection> redis, pool_.take());
    const Status status = clear_now(*redis);
    pool_.give(std::move(redis));
    return status;
  });
}

// First what counts, then pages that nothing counts for.
Status RedisTier::clear_now(RedisConnection& redis) {
  for (int64_t gone = 1; gone > 0;) {
    send_script(redis, kTrimScript, {}, std::to_string(kChunk));
    ATTUNE_ASSIGN_OR_RETURN(const RedisReply reply, redis.next());
    if (reply.kind == RedisReply::Kind::kError)
      return io_error("Redis: " + std::string(reply.text));
    gone = reply.integer;
  }
  std::string cursor = "0";
  do {
    ATTUNE_ASSIGN_OR_RETURN(const RedisReply found,
                            redis.ask({"SCAN", cursor, "MATCH", std::string(kPages) + "*", "COUNT",
                                       std::to_string(kChunk)}));
    if (found.list.size() != 2) return io_error("Redis: " + std::string(found.text));
    cursor = found.list[0].text;
    for (const RedisReply& name : found.list[1].list)
      if (!name.text.starts_with(kPages)) return io_error("Redis: SCAN answers what was not asked");
    for (const RedisReply& name : found.list[1].list)
      send_script(redis, kDropScript, name.text.substr(kPages.size()));
    for (size_t i = 0; i < found.list[1].list.size(); ++i)
      if (const Result<RedisReply> dropped = redis.next(); !dropped.ok()) return dropped.status();
  } while (cursor != "0");
  send_counts(redis);
  take_counts(redis);
  return {};
}

void RedisTier::send_counts(RedisConnection& redis) {
  redis.send({"ZCARD", kUsed});
  redis.send({"GET", kBytes});
}

void RedisTier::take_counts(RedisConnection& redis) {
  const Result<RedisReply> pages = redis.next();
  const Result<RedisReply> bytes = redis.next();
  if (!pages.ok() || !bytes.ok()) return;
  pages_ = pages->integer;
  int64_t held = 0;
  std::from_chars(bytes->text.data(), bytes->text.data() + bytes->text.size(), held);
  bytes_ = held;
}

TierResult RedisTier::refused(std::string_view error) {
  complain(base::cat("Redis at ", pool_.url().where(), " refuses: ", error));
  return error.starts_with("OOM") ? TierResult::kFull : TierResult::kFailed;
}

// At most once in ten seconds.
void RedisTier::complain(std::string_view message) {
  if (complaints_.may()) base::log_warning(message);
}

}  // namespace attune::kv
