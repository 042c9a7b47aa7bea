// Where a Redis or Valkey server is:
//   redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]
//   unix://[[USER]:PASSWORD@]/PATH/TO/SOCKET[?db=DATABASE]
// %XX stands for a byte in user, password and path; an IPv6 address stands in brackets.
#pragma once

#include <string>
#include <string_view>

#include "attune/status.h"

namespace attune::kv {

struct RedisUrl {
  std::string host = "127.0.0.1", socket;  // socket: instead of host and port
  int port = 6379, database = 0;
  std::string user, password;

  std::string where() const;  // for messages: without user and password
};

Result<RedisUrl> parse_redis_url(std::string_view url);

}  // namespace attune::kv
