#include "kv/tier/testing/redis_server.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "kv/tier/digits.h"

extern char** environ;

namespace attune::kv::testing {

std::unique_ptr<RedisServer> RedisServer::start(std::vector<std::string> options) {
  std::unique_ptr<RedisServer> server(new RedisServer(std::move(options)));
  if (server->start_again()) return server;
  ADD_FAILURE() << "no Redis server runs here: tools/setup.sh installs it (debian.lock)";
  return nullptr;
}

RedisServer::~RedisServer() {
  stop();
}

bool RedisServer::start_again() {
  std::vector<std::string> words = {"redis-server",
                                    "--port",
                                    "0",
                                    "--unixsocket",
                                    folder_.path() + "/redis.sock",
                                    "--dir",
                                    folder_.path(),
                                    "--save",
                                    "",
                                    "--appendonly",
                                    "no",
                                    "--logfile",
                                    folder_.path() + "/log"};
  words.insert(words.end(), options_.begin(), options_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // One program for both, told apart by its name; set-up installs it without the service.
  if (::posix_spawnp(&process_, "redis-check-rdb", nullptr, nullptr, argv.data(), environ) != 0) {
    process_ = -1;
    return false;
  }
  Result<RedisUrl> url = parse_redis_url(this->url());
  return eventually([&] {
           if (::waitpid(process_, nullptr, WNOHANG) == process_) {
             process_ = -1;
             return true;
           }
           auto connection = RedisConnection::open(*url, {});
           // It may want a password; then it answers all the same.
           if (!connection.ok()) return connection.status().code() == Code::kInvalidArgument;
           connection_ = std::move(*connection);
           return true;
         }) &&
         process_ > 0;
}

void RedisServer::stop() {
  connection_.reset();
  if (process_ <= 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  ::unlink((folder_.path() + "/redis.sock").c_str());
  process_ = -1;
}

void RedisServer::freeze() {
  ::kill(process_, SIGSTOP);
  int status = 0;
  ::waitpid(process_, &status, WUNTRACED);  // it stands
}
void RedisServer::thaw() {
  ::kill(process_, SIGCONT);
}

RedisReply RedisServer::ask(std::initializer_list<std::string_view> command) {
  const SigpipeBlocked blocked;
  Result<RedisReply> reply = connection_->ask(command);
  EXPECT_TRUE(reply.ok()) << reply.status().to_string();
  return reply.ok() ? *reply : RedisReply{};
}

namespace {

class RedisWorld final : public TierWorld {
 public:
  explicit RedisWorld(std::unique_ptr<RedisServer> server) : server_(std::move(server)) {}
  Result<std::unique_ptr<KvTier>> open(TierConfig config) override {
    config.kind = TierKind::kRedis;
    config.url = server_->url();
    return make_tier(config);
  }
  std::optional<std::string> get(const PageKey& key) override {
    std::lock_guard lock(mutex_);
    const RedisReply reply = server_->ask({"GET", "attune:kv:p:" + hex_digits(key)});
    if (reply.kind == RedisReply::Kind::kNil) return std::nullopt;
    return std::string(reply.text);
  }
  void put(const PageKey& key, const std::string& record) override {
    std::lock_guard lock(mutex_);
    server_->ask({"SET", "attune:kv:p:" + hex_digits(key), record});
  }
  void erase(const PageKey& key) override {
    std::lock_guard lock(mutex_);
    server_->ask({"DEL", "attune:kv:p:" + hex_digits(key)});
  }
  int64_t held_bytes() override {
    std::lock_guard lock(mutex_);
    const RedisReply names = server_->ask({"KEYS", "attune:kv:p:*"});
    int64_t bytes = 0;
    for (const RedisReply& name : names.list) bytes += server_->ask({"STRLEN", name.text}).integer;
    return bytes;
  }
  void hold() override { server_->freeze(); }
  void let_go() override { server_->thaw(); }

 private:
  std::mutex mutex_;
  std::unique_ptr<RedisServer> server_;
};

}  // namespace

std::unique_ptr<TierWorld> make_redis_world() {
  std::unique_ptr<RedisServer> server = RedisServer::start();
  if (server == nullptr) return nullptr;
  return std::make_unique<RedisWorld>(std::move(server));
}

}  // namespace attune::kv::testing
