// The Exchange of a Connection.
#pragma once

#include "server/http_connection.h"

namespace attune::server {

class ConnectionExchange : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, bool head_only, bool http11,
                     Headers extra_headers);
  ~ConnectionExchange() override;

  void respond(HttpResponse response) override;
  void begin(HttpResponse head) override;
  void write(std::string_view data) override;
  void end() override;
  bool writable() const override;
  void on_drain(std::function<void()> task) override { on_drain_ = std::move(task); }
  void on_close(std::function<void()> task) override;
  bool closed() const override { return state_ == State::kLost; }

  // From the connection:
  bool streaming() const { return state_ == State::kStreaming; }
  bool may_probe() const { return http11_ || streaming(); }  // HTTP/1.0 knows no 1xx
  void lost();                                               // it is gone
  void drained();  // its unsent bytes are below the mark again

 private:
  enum class State { kNew, kStreaming, kOver, kLost };
  void over();
  void add_extra_headers(HttpResponse& response) const;

  std::shared_ptr<Connection> connection_;
  const bool head_only_, http11_;
  const Headers extra_headers_;
  State state_ = State::kNew;
  bool was_full_ = false;
  std::function<void()> on_drain_, on_close_;
};

// "HTTP/1.1 200 OK\r\n...\r\n\r\n" with what every answer has.
std::string format_head(const HttpResponse& response, bool keep_alive, bool http11,
                        std::optional<size_t> content_length);

}  // namespace attune::server
