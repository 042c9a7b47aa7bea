// Pages in a Redis or Valkey server, which several servers of ours may share.
//
//   attune:kv:salt        the root salt, set once
//   attune:kv:p:KEY       a page's record; KEY is 64 hex digits
//   attune:kv:used        sorted set: KEY by the time of its last use (microseconds, the server's)
//   attune:kv:sizes       hash: KEY to the bytes that count for it
//   attune:kv:bytes       their sum
//
// A page and what counts for it change in one transaction, and old pages go in the same one, so the
// budget holds whoever writes.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "base/throttle.h"
#include "kv/tier/kv_tier.h"
#include "kv/tier/make_tier.h"
#include "kv/tier/redis/connection.h"
#include "kv/tier/work_queue.h"

namespace attune::kv {

class RedisTier final : public KvTier {
 public:
  static Result<std::unique_ptr<RedisTier>> create(const TierConfig& config);

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
  struct Damaged {
    TierOp* op;
    std::string start;  // of the record
  };

  RedisTier(const TierConfig& config, const RedisUrl& url, std::string root_salt);
  Status keep_salt(RedisConnection& redis);
  void perform(std::span<TierOp> ops);
  int32_t match_now(RedisConnection& redis, const std::vector<PageKey>& keys);
  void read_now(RedisConnection& redis, std::span<TierOp> ops);
  TierResult take_record(const TierOp& op, const Result<RedisReply>& record);
  void drop_damaged(RedisConnection& redis, std::span<Damaged> damaged);
  void write_now(RedisConnection& redis, std::span<TierOp> ops);
  void send_write(RedisConnection& redis, const TierOp& op);
  TierResult take_written(RedisConnection& redis);
  Status clear_now(RedisConnection& redis);
  void drop(RedisConnection& redis, const PageKey& key, std::string_view only_if_starts_with);
  void send_counts(RedisConnection& redis);
  void take_counts(RedisConnection& redis);
  TierResult refused(std::string_view error);
  void complain(std::string_view message);

  const TierConfig config_;
  const PageKey fingerprint_;
  const TierInfo info_;
  RedisPool pool_;
  std::atomic<int64_t> pages_{0}, bytes_{0};  // as the server last said
  std::atomic<uint64_t> evicted_{0};
  base::Throttle complaints_;
  WorkQueue queue_;  // last: its threads use all the others
};

}  // namespace attune::kv
