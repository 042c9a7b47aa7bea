// A Redis server of the machine's, for tests, on a socket in a folder of its own.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "kv/tier/redis/connection.h"
#include "kv/tier/testing/tier_world.h"

namespace attune::kv::testing {

class RedisServer {
 public:
  // Null, and a failure of the test, where there is none (Debian: redis-tools).
  static std::unique_ptr<RedisServer> start(std::vector<std::string> options = {});
  ~RedisServer();

  std::string url() const { return "unix://" + folder_.path() + "/redis.sock"; }
  void stop();
  bool start_again();
  void freeze();  // it takes connections and bytes, and answers nothing
  void thaw();
  RedisReply ask(std::initializer_list<std::string_view> command);

 private:
  explicit RedisServer(std::vector<std::string> options) : options_(std::move(options)) {}

  const std::vector<std::string> options_;
  TestFolder folder_;
  pid_t process_ = -1;
  std::unique_ptr<RedisConnection> connection_;
};

}  // namespace attune::kv::testing
