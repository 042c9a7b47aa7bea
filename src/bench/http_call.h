// Plain HTTP/1.1 requests on sockets of our own: one request a connection, non-blocking.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <string_view>

#include "attune/status.h"
#include "bench/http_reply.h"

namespace attune::bench {

// A server by its URL, its name resolved.
struct HttpTarget {
  std::string authority;  // "127.0.0.1:30000", for the Host header
  std::string prefix;     // of every path; "" or "/some/where"
  std::string api_key;    // sent as a bearer token unless empty
  sockaddr_storage address = {};
  socklen_t address_size = 0;
};

// `url` is http://HOST[:PORT][/PREFIX]; IPv6 addresses stand in brackets. invalid_argument,
// unsupported (https), not_found (no such host).
Result<HttpTarget> find_target(std::string_view url, std::string api_key);

// The bytes of a request; the connection is to be closed after the reply. An empty `body` makes it
// one without a body.
std::string http_request(const HttpTarget& target, std::string_view method, std::string_view path,
                         std::string_view body);

// One request under way. Whoever polls fd() calls advance() when it is ready; nothing blocks.
// Thread-compatible.
class HttpCall {
 public:
  // Opens the connection. `request` must outlive the call.
  static Result<std::unique_ptr<HttpCall>> start(const HttpTarget& target,
                                                 std::string_view request);
  ~HttpCall();
  HttpCall(const HttpCall&) = delete;
  HttpCall& operator=(const HttpCall&) = delete;

  int fd() const { return fd_; }
  bool is_sending() const { return sent_ < request_.size(); }  // else receiving
  // Sends or receives what it can now, once; appends what came of the body.
  Status advance(std::string& body);
  const HttpReplyReader& reply() const { return reply_; }
  bool done() const { return reply_.done(); }

 private:
  HttpCall(int fd, std::string_view request) : fd_(fd), request_(request) {}
  Status send_some();

  int fd_;
  std::string_view request_;
  size_t sent_ = 0;
  HttpReplyReader reply_;
};

struct HttpReply {
  int status = 0;
  std::string body;
};
// A whole call, waited for. deadline_exceeded after `timeout_s`.
Result<HttpReply> fetch(const HttpTarget& target, std::string_view method, std::string_view path,
                        std::string_view body, double timeout_s);

}  // namespace attune::bench
