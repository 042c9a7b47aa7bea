// A blocking HTTP client on a raw socket, for tests: it sends what it is told, right or wrong.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace attune::server::testing {

struct Reply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
};

class Client {
 public:
  explicit Client(int port, double timeout_seconds = 10);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool send(std::string_view bytes);
  void shut_down();  // no more from us (half close)
  void close();
  void reset();  // closes with RST

  Reply get(const std::string& path, const std::string& headers = "");
  Reply post(const std::string& path, const std::string& body, const std::string& headers = "");
  // Sends a POST without reading the answer.
  bool send_post(const std::string& path, const std::string& body, const std::string& headers = "");
  // status 0 when the connection ends first. `no_body`: the answer to a HEAD.
  Reply read_reply(bool no_body = false);

  // For streams: the head, then one server-sent event's data after the other; nullopt at the end.
  Reply read_head();
  std::optional<std::string> next_event();
  // Reads some of what comes and drops it.
  void drain() {
    fill();
    in_.clear();
  }
  // True when the server has closed (waits for it up to the timeout).
  bool at_end();

 private:
  bool fill();  // reads some; false at the end or after the timeout
  std::optional<std::string> read_chunk();

  int fd_ = -1;
  std::string in_;
  std::string events_;
  bool stream_over_ = false;
};

}  // namespace attune::server::testing
