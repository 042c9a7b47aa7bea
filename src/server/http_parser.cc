#include "server/http_parser.h"

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>

namespace attune::server {

namespace http = boost::beast::http;

struct RequestParser::Impl {
  http::request_parser<http::string_body> parser;
  bool started = false;
  bool http11 = true, keep_alive = false, expects_continue = false;
  size_t max_header = 0, max_body = 0;
};

RequestParser::RequestParser(size_t max_header_bytes, size_t max_body_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(static_cast<std::uint32_t>(max_header_bytes));
  impl_->parser.body_limit(max_body_bytes);
  impl_->max_header = max_header_bytes;
  impl_->max_body = max_body_bytes;
}

RequestParser::~RequestParser() = default;

bool RequestParser::started() const {
  return impl_->started;
}
bool RequestParser::http11() const {
  return impl_->http11;
}
bool RequestParser::keep_alive() const {
  return impl_->keep_alive;
}
bool RequestParser::has_body() const {
  return !impl_->parser.is_done();
}
bool RequestParser::expects_continue() const {
  return impl_->expects_continue;
}

RequestParser::State RequestParser::fail(int status, std::string error) {
  status_ = status;
  error_ = std::move(error);
  return State::kFailed;
}

RequestParser::State RequestParser::read(std::string& in) {
  auto& parser = impl_->parser;
  if (!in.empty()) impl_->started = true;
  while (!parser.is_done()) {
    if (in.empty()) return State::kNeedMore;
    // No chunked body ends in fewer bytes, and Beast asserts so when it sees the last chunk again.
    // What cannot be part of the end is refused at once.
    constexpr std::string_view kLastChunk = "0\r\n\r\n";
    const bool may_be_end = kLastChunk.find(in[0]) != std::string_view::npos;
    if (head_seen_ && parser.chunked() && may_be_end && in.size() < kLastChunk.size()) {
      return State::kNeedMore;
    }
    boost::system::error_code error;
    const size_t used = parser.put(boost::asio::buffer(in), error);
    in.erase(0, used);
    if (error == http::error::need_more || (!error && used == 0)) {
      // Body bytes are taken at once, so what stays is a head, or a chunk's.
      if (in.size() <= impl_->max_header) return State::kNeedMore;
      error = http::error::header_limit;
    }
    if (error == http::error::header_limit) return fail(431, "the request's head is too large");
    if (error == http::error::body_limit) {
      return fail(413, "the request's body is larger than the limit of " +
                           std::to_string(impl_->max_body) + " bytes");
    }
    if (error) return fail(400, "malformed HTTP request: " + error.message());
    if (!head_seen_ && parser.is_header_done()) {
      fill_head();
      const auto coding = request_.header("transfer-encoding");
      if (!coding.empty() && !parser.chunked()) {
        return fail(501,
                    "transfer coding '" + std::string(coding) + "' is not supported; use chunked");
      }
      parser.eager(true);
      return State::kHead;
    }
  }
  request_.body = std::move(parser.get().body());
  return State::kDone;
}

void RequestParser::fill_head() {
  head_seen_ = true;
  const auto& message = impl_->parser.get();
  impl_->http11 = message.version() >= 11;
  impl_->keep_alive = message.keep_alive();
  request_.method_name = std::string(message.method_string());
  switch (message.method()) {
    case http::verb::get:
      request_.method = Method::kGet;
      break;
    case http::verb::head:
      request_.method = Method::kHead;
      break;
    case http::verb::post:
      request_.method = Method::kPost;
      break;
    case http::verb::options:
      request_.method = Method::kOptions;
      break;
    default:
      request_.method = Method::kOther;
  }
  std::string target(message.target());
  // "http://host/path": only proxies are sent it, but every server must take it (RFC 9112, 3.2.2).
  if (const size_t colons = target.find("://"); colons != std::string::npos && target[0] != '/') {
    target.erase(0, std::min(target.find_first_of("/?", colons + 3), target.size()));
    if (target.empty() || target[0] == '?') target.insert(0, "/");
  }
  const size_t mark = target.find('?');
  request_.path = percent_decode(std::string_view(target).substr(0, mark));
  if (mark != std::string::npos) request_.query = target.substr(mark + 1);
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    request_.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  impl_->expects_continue = request_.header("expect") == "100-continue";
}

std::string percent_decode(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace attune::server
