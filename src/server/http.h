// The HTTP core as the rest of the server sees it: a request in, a response or a stream out, the
// news that the client has left, timers. Asio and Beast are known to http_*.cc only.
//
// Everything here belongs to the loop's thread, unless it says otherwise.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attune/status.h"

namespace attune::server {

using Clock = std::chrono::steady_clock;
using Headers = std::vector<std::pair<std::string, std::string>>;

// One thread that runs what is posted to it. Destruction runs what is already posted, drops the
// timers, and joins the thread.
class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void post(std::function<void()> task);        // any thread; tasks run in order
  void run(const std::function<void()>& task);  // any other thread: posts and waits
  bool on_thread() const;                       // any thread

  // Cancelled when the last copy of the handle goes. May be armed on any thread.
  using Timer = std::shared_ptr<void>;
  [[nodiscard]] Timer after(double seconds, std::function<void()> task);
  // SIGTERM and SIGINT call `task` instead of ending the process; the second one ends it.
  void on_signal(std::function<void()> task);

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

enum class Method : uint8_t { kGet, kHead, kPost, kOptions, kOther };

struct HttpRequest {
  Method method = Method::kOther;
  std::string method_name;
  std::string path;   // percent-decoded, without the query
  std::string query;  // as sent, without '?'
  Headers headers;    // names in lower case
  std::string body;
  Clock::time_point arrival;  // of its first byte

  // Empty when absent.
  std::string_view header(std::string_view lower_case_name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers = {};
};

// One request's way back. Exactly one of respond() and begin()...end() answers it; when the last
// reference goes without either, the client gets a 500 (or a broken stream).
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void respond(HttpResponse response) = 0;

  // A stream: the head (its body is ignored), pieces, the end. Each write() leaves at once; what
  // the client does not take is kept, so stop writing while !writable() and go on in on_drain.
  virtual void begin(HttpResponse head) = 0;
  virtual void write(std::string_view data) = 0;
  virtual void end() = 0;

  virtual bool writable() const = 0;
  // Called each time that writable() has become true again.
  virtual void on_drain(std::function<void()> task) = 0;
  // Called once if the connection is lost before the answer has ended; seen at once, also while
  // nothing is written. Both callbacks are dropped when the exchange is over.
  virtual void on_close(std::function<void()> task) = 0;
  virtual bool closed() const = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Sees a request that has a body before that is read; a response refuses it there.
  virtual std::optional<HttpResponse> check(const HttpRequest& head) = 0;
  // Goes with every answer to this request, refusals by check() included.
  virtual Headers extra_headers(const HttpRequest& head) = 0;
  virtual void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
  // What the core itself refuses (400, 408, 413, 431, 503) looks like.
  virtual HttpResponse refusal(int status, const std::string& message) = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: a free one
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 8 << 20;
  double read_timeout = 30;   // seconds from a request's first byte to its last
  double idle_timeout = 75;   // seconds that a connection may rest between requests
  double write_timeout = 60;  // seconds without the client taking a byte of what waits for it
  size_t max_connections = 4096;
  size_t max_held_bytes = 512 << 20;   // of all requests that are being read or answered
  size_t high_water_bytes = 64 << 10;  // unsent bytes from which a stream is not writable
};

class HttpServer {
 public:
  // Any thread but the loop's. Errors: invalid_argument (host), io_error (cannot bind, with the
  // address).
  static Result<std::unique_ptr<HttpServer>> listen(Loop& loop, const HttpOptions& options,
                                                    HttpHandler& handler);
  // Any thread but the loop's, like stop().
  ~HttpServer();

  int port() const;
  // A host by which this machine reaches it: the one asked for, or its loopback where that is every
  // address.
  const std::string& host() const;
  bool is_loopback() const;    // only programs of this machine reach it
  size_t connections() const;  // any thread

  // Closes the listener and resting connections, lets running exchanges end until `seconds` are
  // over, then closes all. Any thread but the loop's; blocks; may be called again.
  void stop(double seconds);

  struct Impl;

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace attune::server
