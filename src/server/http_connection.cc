#include "server/http_connection.h"

#include "server/http_exchange.h"

namespace attune::server {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {
constexpr size_t kMaxPipelined = 64 << 10;  // bytes kept of requests sent before their turn
constexpr double kLingerSeconds = 2;
}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, std::shared_ptr<ConnectionHost> host)
    : socket_(std::move(socket)), host_(std::move(host)) {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
}

void Connection::start() {
  arrival_ = Clock::now();
  parser_.emplace(host_->options.max_header_bytes, host_->options.max_body_bytes);
  arm(host_->options.read_timeout, &Connection::on_read_timeout);
  wait_readable();
}

void Connection::start_refused() {
  refuse(host_->handler.refusal(503, "too many connections (limit " +
                                         std::to_string(host_->options.max_connections) +
                                         "); try again later"));
  wait_readable();
}

void Connection::stop() {
  last_ = true;
  keep_alive_ = false;
  if (exchange_ || writing_) return;
  if (in_.empty() && !(parser_ && parser_->started())) return close();
  // What still arrives could only be refused.
  refuse(host_->handler.refusal(503, "the server is shutting down"));
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  const auto self = shared_from_this();
  error_code ignored;
  socket_.close(ignored);
  timer_.reset();
  if (exchange_) exchange_->lost();
  let_go();
  host_->on_gone(this);
}

void Connection::arm(double seconds, void (Connection::*task)()) {
  timer_ = host_->loop.after(seconds, [weak = weak_from_this(), task] {
    if (auto self = weak.lock()) ((*self).*task)();
  });
}

void Connection::on_read_timeout() {
  if (parser_ && parser_->started()) {
    refuse(host_->handler.refusal(408, "the request did not arrive within the time allowed"));
  } else {
    close();
  }
}

// --- reading ---

void Connection::wait_readable() {
  if (closed_ || reading_) return;
  if (half_closed_) {
    if (!exchange_ && !writing_) close();  // all that was asked is answered
    return;
  }
  if (!parser_ && in_.size() >= kMaxPipelined) return;  // next_request() goes on
  reading_ = true;
  socket_.async_wait(asio::socket_base::wait_read, [self = shared_from_this()](error_code error) {
    self->reading_ = false;
    if (error) return self->close();
    self->on_readable();
  });
}

void Connection::on_readable() {
  if (closed_) return;
  auto& scratch = host_->loop.impl().scratch;
  error_code error;
  const size_t n = socket_.read_some(asio::buffer(scratch), error);
  if (error == asio::error::would_block) return wait_readable();
  if (error == asio::error::eof && (exchange_ || writing_)) return on_half_closed();
  if (error) return close();
  if (!last_) {
    if (!exchange_ && !hold(n)) return;
    in_.append(scratch.data(), n);
    advance();
  }
  wait_readable();
}

// The client sends no more, but may still read the answer: or it has gone, which looks the same
// until it is sent something. So it is: what a stream writes anyway, or else "100 Continue", which
// every client of HTTP/1.1 reads over (RFC 9110, 15.2). One that has gone answers with a reset.
void Connection::on_half_closed() {
  half_closed_ = true;
  if (exchange_ && !exchange_->may_probe()) return close();
  if (exchange_ && !exchange_->streaming()) send("HTTP/1.1 100 Continue\r\n\r\n");
  if (closed_) return;
  socket_.async_wait(asio::socket_base::wait_error,
                     [self = shared_from_this()](error_code) { self->close(); });
}

// What is read of requests, and their bodies until they are answered, counts for the memory that
// all connections may have. False: there was too little, the request is refused.
bool Connection::hold(size_t bytes) {
  if (host_->held_bytes + bytes > host_->options.max_held_bytes) {
    refuse(host_->handler.refusal(
        503,
        "the requests being served leave no memory for the body of this one; try again later"));
    wait_readable();
    return false;
  }
  held_ += bytes;
  host_->held_bytes += bytes;
  return true;
}

void Connection::let_go() {
  host_->held_bytes -= std::exchange(held_, 0);
}

void Connection::advance() {
  while (!closed_ && !last_ && !exchange_) {
    if (!parser_) return;
    const bool fresh = !parser_->started();
    if (fresh && in_.empty()) return;
    const auto state = parser_->read(in_);
    if (fresh) {
      arrival_ = Clock::now();
      arm(host_->options.read_timeout, &Connection::on_read_timeout);
    }
    if (state == RequestParser::State::kNeedMore) return;
    if (state == RequestParser::State::kFailed) {
      return refuse(host_->handler.refusal(parser_->status(), parser_->error()));
    }
    if (state == RequestParser::State::kHead && !check_head()) return;
    if (state == RequestParser::State::kDone) dispatch();
  }
}

bool Connection::check_head() {
  if (!parser_->keep_alive() || host_->stopping) keep_alive_ = false;
  if (!parser_->has_body()) return true;  // handle() has all there is
  if (auto response = host_->handler.check(parser_->request())) {
    for (auto& header : host_->handler.extra_headers(parser_->request())) {
      response->headers.push_back(std::move(header));
    }
    if (parser_->request().method == Method::kHead) response->body.clear();
    refuse(std::move(*response));
    return false;
  }
  if (parser_->expects_continue()) send("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

void Connection::dispatch() {
  timer_.reset();
  HttpRequest request = std::move(parser_->request());
  request.arrival = arrival_;
  auto exchange = std::make_shared<ConnectionExchange>(
      shared_from_this(), request.method == Method::kHead, parser_->http11(),
      host_->handler.extra_headers(request));
  parser_.reset();
  if (in_.empty()) std::string().swap(in_);  // a stream may now rest for long
  exchange_ = exchange.get();
  host_->handler.handle(std::move(request), std::move(exchange));
}

void Connection::refuse(HttpResponse response) {
  last_ = true;
  keep_alive_ = false;
  timer_.reset();
  in_.clear();
  parser_.reset();
  let_go();
  send(format_head(response, false, true, response.body.size()) + response.body);
}

// --- writing ---

void Connection::send(std::string_view data) {
  if (closed_) return;
  out_.append(data);
  if (!writing_) send_more();
}

void Connection::send_more() {
  if (sent_ == sending_.size()) {
    sending_.clear();
    sent_ = 0;
    sending_.swap(out_);
  }
  writing_ = true;
  arm(host_->options.write_timeout, &Connection::close);
  socket_.async_write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](error_code error, size_t n) {
                             self->writing_ = false;
                             if (self->closed_) return;
                             if (error) return self->close();
                             self->sent_ += n;
                             self->timer_.reset();
                             const bool more =
                                 self->sent_ < self->sending_.size() || !self->out_.empty();
                             if (more) self->send_more();
                             if (self->exchange_) {
                               self->exchange_->drained();
                             } else if (!more && !self->writing_) {
                               self->finish_exchange();
                             }
                           });
}

// The answer is complete, though maybe not sent yet.
void Connection::finish_exchange() {
  if (closed_ || exchange_ || writing_ || lingering_) return;
  std::string().swap(sending_);
  std::string().swap(out_);
  sent_ = 0;
  if (parser_ && !last_) {  // 100 Continue was sent; the body is still to come
    arm(host_->options.read_timeout, &Connection::on_read_timeout);
    return;
  }
  if (!keep_alive_ || last_ || host_->stopping) return linger();
  next_request();
}

void Connection::next_request() {
  let_go();
  parser_.emplace(host_->options.max_header_bytes, host_->options.max_body_bytes);
  arm(host_->options.idle_timeout, &Connection::on_read_timeout);
  advance();
  wait_readable();
}

void Connection::linger() {
  last_ = lingering_ = true;
  in_.clear();
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  arm(kLingerSeconds, &Connection::close);
  wait_readable();  // what still comes is dropped; its end closes
}

}  // namespace attune::server
