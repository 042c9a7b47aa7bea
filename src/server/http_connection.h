// One client's connection: requests are read one after the other, each answered through an
// Exchange. A read is always pending, so a client that leaves is noticed whatever else goes on.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <optional>
#include <string>

#include "server/asio_loop.h"
#include "server/http.h"
#include "server/http_parser.h"

namespace attune::server {

class Connection;
class ConnectionExchange;

// What connections share and report to.
struct ConnectionHost {
  Loop& loop;
  HttpOptions options;
  HttpHandler& handler;
  bool stopping = false;
  size_t held_bytes = 0;  // by all connections
  std::function<void(Connection*)> on_gone;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // The host outlives the loop's last task.
  Connection(boost::asio::ip::tcp::socket socket, std::shared_ptr<ConnectionHost> host);

  void start();
  // Too many connections: answers 503 without reading, and closes.
  void start_refused();
  // The server stops: a resting connection closes, one whose request is still arriving is refused,
  // a busy one closes after its exchange.
  void stop();
  void close();

 private:
  friend class ConnectionExchange;

  void wait_readable();
  void on_readable();
  void on_half_closed();
  bool hold(size_t bytes);
  void let_go();
  void advance();     // parses what has been read, as long as no exchange is running
  bool check_head();  // false: refused
  void dispatch();
  void refuse(HttpResponse response);  // answers and closes: the rest of the request stays unread
  void next_request();
  void arm(double seconds, void (Connection::*task)());
  void on_read_timeout();

  void send(std::string_view data);
  void send_more();
  void finish_exchange();
  void linger();  // all is sent: give the client time to read it before the socket goes

  boost::asio::ip::tcp::socket socket_;
  std::shared_ptr<ConnectionHost> host_;
  std::string in_;       // read, not parsed yet
  std::string sending_;  // sent up to sent_
  std::string out_;      // goes after it
  size_t sent_ = 0;
  size_t held_ = 0;                      // this connection's share of the host's
  std::optional<RequestParser> parser_;  // of the request that is being read
  Clock::time_point arrival_;
  bool keep_alive_ = true;
  bool reading_ = false;      // a wait for the socket is pending
  bool writing_ = false;      // a write is pending
  bool last_ = false;         // no further request is read
  bool half_closed_ = false;  // the client sends no more, but what it sent is answered
  bool lingering_ = false;    // shut down; only waiting for the client's end
  bool closed_ = false;
  ConnectionExchange* exchange_ = nullptr;  // the running one; it owns a reference to this
  Loop::Timer timer_;
};

}  // namespace attune::server
