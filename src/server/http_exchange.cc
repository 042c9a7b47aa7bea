#include "server/http_exchange.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <ctime>

namespace attune::server {
namespace {

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::array<char, 64> text;
  const int n = std::snprintf(text.data(), text.size(), "%s, %02d %s %04d %02d:%02d:%02d GMT",
                              kDays[utc.tm_wday], utc.tm_mday, kMonths[utc.tm_mon],
                              utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
  return {text.data(), static_cast<size_t>(n)};
}

}  // namespace

std::string format_head(const HttpResponse& response, bool keep_alive, bool http11,
                        std::optional<size_t> content_length) {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " +
                     reason_phrase(response.status) + "\r\nDate: " + http_date() + "\r\n";
  const bool no_body = response.status == 204 || response.status / 100 == 1;
  if (!no_body) head += "Content-Type: " + response.content_type + "\r\n";
  if (content_length && !no_body) {
    head += "Content-Length: " + std::to_string(*content_length) + "\r\n";
  } else if (!content_length && http11) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  if (!keep_alive) {
    head += "Connection: close\r\n";
  } else if (!http11) {
    head += "Connection: keep-alive\r\n";
  }
  return head + "\r\n";
}

ConnectionExchange::ConnectionExchange(std::shared_ptr<Connection> connection, bool head_only,
                                       bool http11, Headers extra_headers)
    : connection_(std::move(connection)),
      head_only_(head_only),
      http11_(http11),
      extra_headers_(std::move(extra_headers)) {}

ConnectionExchange::~ConnectionExchange() {
  if (state_ == State::kNew) {
    respond(connection_->host_->handler.refusal(500, "the request was dropped"));
  } else if (state_ == State::kStreaming) {
    state_ = State::kOver;
    connection_->exchange_ = nullptr;
    connection_->close();
  }
}

void ConnectionExchange::respond(HttpResponse response) {
  if (state_ != State::kNew) return;
  add_extra_headers(response);
  std::string bytes =
      format_head(response, connection_->keep_alive_, http11_, response.body.size());
  if (!head_only_ && response.status != 204) bytes += response.body;
  connection_->send(bytes);
  over();
}

void ConnectionExchange::begin(HttpResponse head) {
  if (state_ != State::kNew) return;
  state_ = State::kStreaming;
  add_extra_headers(head);
  if (!http11_) connection_->keep_alive_ = false;  // the end of the stream is the connection's
  connection_->send(format_head(head, connection_->keep_alive_, http11_, std::nullopt));
}

void ConnectionExchange::add_extra_headers(HttpResponse& response) const {
  response.headers.insert(response.headers.end(), extra_headers_.begin(), extra_headers_.end());
}

void ConnectionExchange::write(std::string_view data) {
  if (state_ != State::kStreaming || data.empty() || head_only_) return;
  if (http11_) {
    std::array<char, 20> size;
    char* end = std::to_chars(size.data(), size.data() + size.size(), data.size(), 16).ptr;
    std::string chunk(size.data(), end);
    chunk.append("\r\n").append(data).append("\r\n");
    connection_->send(chunk);
  } else {
    connection_->send(data);
  }
  was_full_ = !writable();
}

void ConnectionExchange::end() {
  if (state_ != State::kStreaming) return;
  if (http11_ && !head_only_) connection_->send("0\r\n\r\n");
  over();
}

bool ConnectionExchange::writable() const {
  return state_ == State::kStreaming &&
         connection_->out_.size() + connection_->sending_.size() - connection_->sent_ <
             connection_->host_->options.high_water_bytes;
}

void ConnectionExchange::on_close(std::function<void()> task) {
  if (state_ == State::kLost) {
    task();
  } else if (state_ != State::kOver) {
    on_close_ = std::move(task);
  }
}

void ConnectionExchange::over() {
  state_ = State::kOver;
  // The callbacks may own the last reference to this.
  const auto drain = std::move(on_drain_), close = std::move(on_close_);
  on_drain_ = on_close_ = nullptr;
  connection_->exchange_ = nullptr;
  connection_->finish_exchange();
}

void ConnectionExchange::lost() {
  if (state_ == State::kOver || state_ == State::kLost) return;
  state_ = State::kLost;
  const auto drain = std::move(on_drain_), close = std::move(on_close_);
  on_drain_ = on_close_ = nullptr;
  connection_->exchange_ = nullptr;
  if (close) close();
}

void ConnectionExchange::drained() {
  if (!was_full_ || !writable()) return;
  was_full_ = false;
  const auto task = on_drain_;
  if (task) task();
}

}  // namespace attune::server
