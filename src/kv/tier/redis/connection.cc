#include "kv/tier/redis/connection.h"

#include <hiredis/hiredis.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"

namespace attune::kv {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr const char* kLate = "no answer in time";
constexpr size_t kMostReplyBytes = 1 << 30;  // no page is that large

timeval time_of(double seconds) {
  const int64_t us = static_cast<int64_t>(seconds * 1e6);
  return {us / 1'000'000, us % 1'000'000};
}

RedisReply reply_of(const redisReply& raw, const std::shared_ptr<void>& holder) {
  RedisReply reply;
  reply.holder = holder;
  switch (raw.type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR:
      reply.kind =
          raw.type == REDIS_REPLY_ERROR ? RedisReply::Kind::kError : RedisReply::Kind::kText;
      reply.text = {raw.str, raw.len};
      break;
    case REDIS_REPLY_INTEGER:
      reply.kind = RedisReply::Kind::kInteger;
      reply.integer = raw.integer;
      break;
    case REDIS_REPLY_ARRAY:
      reply.kind = RedisReply::Kind::kList;
      for (size_t i = 0; i < raw.elements; ++i)
        reply.list.push_back(reply_of(*raw.element[i], holder));
      break;
    default:
      break;
  }
  return reply;
}

}  // namespace

struct RedisConnection::Context {
  redisContext* raw = nullptr;
  Clock::duration patience{};  // with one reply
  std::string where;
  ~Context() {
    if (raw != nullptr) redisFree(raw);
  }
};

RedisConnection::RedisConnection(std::unique_ptr<Context> context) : context_(std::move(context)) {}
RedisConnection::~RedisConnection() = default;

Result<std::unique_ptr<RedisConnection>> RedisConnection::open(const RedisUrl& url,
                                                               RedisTimes times) {
  auto context = std::make_unique<Context>();
  context->where = url.where();
  const timeval most = time_of(times.connect_seconds);
  context->raw = url.socket.empty() ? redisConnectWithTimeout(url.host.c_str(), url.port, most)
                                    : redisConnectUnixWithTimeout(url.socket.c_str(), most);
  if (context->raw == nullptr) return resource_exhausted("no memory for a connection to Redis");
  if (context->raw->err != 0)
    return unavailable(base::cat("no Redis server answers at ", context->where, ": ",
                                 context->raw->errstr,
                                 "; start it, or name another with --hicache-storage-url"));
  if (redisSetTimeout(context->raw, time_of(times.command_seconds)) != REDIS_OK)
    return io_error(base::cat("Redis at ", context->where, ": the time-out cannot be set"));
  context->patience = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(times.command_seconds));
  std::unique_ptr<RedisConnection> connection(new RedisConnection(std::move(context)));
  ATTUNE_RETURN_IF_ERROR(connection->log_in(url));
  return connection;
}

Status RedisConnection::log_in(const RedisUrl& url) {
  const std::string server = "the Redis server at " + context_->where;
  if (!url.password.empty()) {
    Result<RedisReply> reply =
        url.user.empty() ? ask({"AUTH", url.password}) : ask({"AUTH", url.user, url.password});
    if (!reply.ok()) return reply.status();
    if (reply->kind == RedisReply::Kind::kError)
      return invalid_argument(base::cat(server, " refuses the login in --hicache-storage-url: ",
                                        reply->text, "; put the right one there"));
  }
  ATTUNE_ASSIGN_OR_RETURN(const RedisReply selected, ask({"SELECT", std::to_string(url.database)}));
  if (selected.is_error("NOAUTH"))
    return invalid_argument(server + " wants a password: redis://[USER]:PASSWORD@HOST...");
  if (selected.kind == RedisReply::Kind::kError)
    return invalid_argument(base::cat(server, " does not open database ", url.database, ": ",
                                      selected.text, "; name another in --hicache-storage-url"));
  return {};
}

void RedisConnection::send(std::span<const std::string_view> command) {
  std::vector<const char*> parts;
  std::vector<size_t> sizes;
  for (std::string_view part : command) {
    parts.push_back(part.data());
    sizes.push_back(part.size());
  }
  if (lost_) return;
  if (redisAppendCommandArgv(context_->raw, static_cast<int>(parts.size()), parts.data(),
                             sizes.data()) != REDIS_OK)
    lost_ = true;
}

Status RedisConnection::lose(const char* why) {
  lost_ = true;
  const int error = context_->raw->err;
  if (error == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK)) why = kLate;
  return unavailable(
      base::cat("Redis at ", context_->where, ": ", why ? why : context_->raw->errstr));
}

// As redisGetReply, whose time-out is for each part of a reply, and which takes any length.
Result<RedisReply> RedisConnection::next() {
  redisContext* redis = context_->raw;
  const auto end = Clock::now() + context_->patience;
  for (int sent = 0; sent == 0;) {
    if (lost_ || redisBufferWrite(redis, &sent) != REDIS_OK) return lose();
    if (Clock::now() > end) return lose(kLate);
  }
  void* raw = nullptr;
  for (;;) {
    if (redisReaderGetReply(redis->reader, &raw) != REDIS_OK) return lose(redis->reader->errstr);
    if (raw != nullptr) break;
    if (redis->reader->len > kMostReplyBytes) return lose("an answer without an end");
    if (redisBufferRead(redis) != REDIS_OK) return lose();
    if (Clock::now() > end) return lose(kLate);
  }
  const std::shared_ptr<void> holder(raw, freeReplyObject);
  return reply_of(*static_cast<redisReply*>(raw), holder);
}

bool RedisConnection::hung_up() const {
  char byte;
  const ssize_t got = ::recv(context_->raw->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

Result<std::unique_ptr<RedisConnection>> RedisPool::take() {
  {
    std::lock_guard lock(mutex_);
    while (!idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      if (!connection->hung_up()) return connection;
    }
    if (Clock::now() < next_try_) return unavailable("Redis at " + url_.where() + " is gone");
  }
  Result<std::unique_ptr<RedisConnection>> connection = RedisConnection::open(url_, times_);
  if (connection.ok())
    if (Status status = opened_(**connection); !status.ok()) connection = status;
  std::lock_guard lock(mutex_);
  pause_ = connection.ok() ? Clock::duration{} : std::clamp<Clock::duration>(2 * pause_, 100ms, 5s);
  next_try_ = Clock::now() + pause_;
  return connection;
}

void RedisPool::give(std::unique_ptr<RedisConnection> connection) {
  std::lock_guard lock(mutex_);
  if (!connection->lost()) return idle_.push_back(std::move(connection));
  idle_.clear();  // the others go to the same server
}

SigpipeBlocked::SigpipeBlocked() {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

SigpipeBlocked::~SigpipeBlocked() {
  if (sigismember(&before_, SIGPIPE)) return;
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec now{};
  while (sigtimedwait(&pipe, nullptr, &now) < 0 && errno == EINTR) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace attune::kv
