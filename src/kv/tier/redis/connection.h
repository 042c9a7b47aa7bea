// A connection to a Redis server as the tier needs it: commands go out together, replies come back
// in their order. One thread at a time; SIGPIPE must be blocked on it (SigpipeBlocked).
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attune/status.h"
#include "kv/tier/redis/url.h"

namespace attune::kv {

struct RedisReply {
  enum class Kind : uint8_t { kNil, kText, kInteger, kError, kList };
  Kind kind = Kind::kNil;
  std::string_view text;  // kText, kError; lives as long as `holder`
  int64_t integer = 0;
  std::vector<RedisReply> list;
  std::shared_ptr<void> holder;

  bool is_error(std::string_view start) const {
    return kind == Kind::kError && text.starts_with(start);
  }
};

struct RedisTimes {
  double connect_seconds = 2, command_seconds = 5;
};

class RedisConnection {
 public:
  // Connects, logs in and selects the database. Errors are sentences: unavailable (no server
  // answers), invalid_argument (login or database refused).
  static Result<std::unique_ptr<RedisConnection>> open(const RedisUrl& url, RedisTimes times);
  ~RedisConnection();

  void send(std::span<const std::string_view> command);  // at the latest with next()
  void send(std::initializer_list<std::string_view> command) {
    send(std::span(command.begin(), command.size()));
  }
  // The reply to the oldest command that has none yet. unavailable: the connection is lost, as are
  // all replies to come; what the commands did is not known.
  Result<RedisReply> next();
  Result<RedisReply> ask(std::initializer_list<std::string_view> command) {
    send(command);
    return next();
  }
  bool lost() const { return lost_; }
  bool hung_up() const;  // the server has closed it, while no reply was due

 private:
  struct Context;
  explicit RedisConnection(std::unique_ptr<Context> context);
  Status lose(const char* why = nullptr);
  Status log_in(const RedisUrl& url);

  std::unique_ptr<Context> context_;
  bool lost_ = false;
};

// Connections that come back after a while when they are lost: at first after 0.1 s, then after
// twice as long each time, up to 5 s. Until then nobody waits. Thread-safe.
class RedisPool {
 public:
  // `opened` is called with every new connection.
  using Opened = std::function<Status(RedisConnection&)>;
  RedisPool(RedisUrl url, RedisTimes times, Opened opened)
      : url_(std::move(url)), times_(times), opened_(std::move(opened)) {}
  // Errors: unavailable, also at once as long as it is too early for another try.
  Result<std::unique_ptr<RedisConnection>> take();
  void give(std::unique_ptr<RedisConnection> connection);
  const RedisUrl& url() const { return url_; }

 private:
  using Clock = std::chrono::steady_clock;
  const RedisUrl url_;
  const RedisTimes times_;
  const Opened opened_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<RedisConnection>> idle_;
  Clock::time_point next_try_{};
  Clock::duration pause_{};
};

// A server that hangs up ends nobody: as long as this lives, on this thread.
class SigpipeBlocked {
 public:
  SigpipeBlocked();
  ~SigpipeBlocked();
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace attune::kv
