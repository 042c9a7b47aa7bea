// An HTTP server for tests that answers with whatever bytes it is told, right or wrong.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace attune::bench::testing {

struct FakeRequest {
  std::string method, path, head, body;
};

// One accepted connection; closed when the handler returns.
class FakeConnection {
 public:
  explicit FakeConnection(int fd) : fd_(fd) {}
  bool send(std::string_view bytes);                        // false: the client is gone
  void send_split(std::string_view bytes, size_t at_most);  // in packets of so many bytes
  bool send_chunk(std::string_view bytes);                  // of a chunked body
  void reset();                                             // closes with RST
  int fd() const { return fd_; }

 private:
  int fd_;
};

// "HTTP/1.1 200 OK" with chunked events.
extern const char* const kStreamHead;
std::string sized_reply(int status, std::string_view body);
std::string event(std::string_view data);  // "data: DATA\n\n"

// Calls `handler` for each request, on a thread of its own. The destructor waits for all of them.
class FakeServer {
 public:
  using Handler = std::function<void(const FakeRequest&, FakeConnection&)>;
  explicit FakeServer(Handler handler);
  ~FakeServer();

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<FakeRequest> requests() const;  // so far, in order of arrival

 private:
  void serve(int fd);

  Handler handler_;
  int listener_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<FakeRequest> requests_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace attune::bench::testing
