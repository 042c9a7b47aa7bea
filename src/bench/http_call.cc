#include "bench/http_call.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "base/log.h"

namespace attune::bench {
namespace {

constexpr size_t kReadBytes = 64 << 10;

Status socket_error(std::string_view what, int error) {
  std::string hint;
  if (error == EMFILE || error == ENFILE)
    hint = "; raise the limit of open files (ulimit -n) or set --max-concurrency";
  if (error == EADDRNOTAVAIL) hint = "; no local port is free: set --max-concurrency";
  return io_error(base::cat(what, ": ", std::strerror(error), hint));
}

struct UrlParts {
  std::string host, port = "80", prefix;
};

Result<UrlParts> split_url(std::string_view url) {
  const std::string shown(url);
  if (url.starts_with("https://")) {
    return unsupported(base::cat("--base-url ", shown,
                                 ": TLS is not spoken here; measure the http:// port behind it"));
  }
  if (!url.starts_with("http://"))
    return invalid_argument(base::cat("--base-url '", shown, "' is not http://HOST:PORT"));
  url.remove_prefix(7);
  UrlParts parts;
  const size_t slash = url.find('/');
  if (slash != std::string_view::npos) parts.prefix = url.substr(slash);
  while (parts.prefix.ends_with('/')) parts.prefix.pop_back();
  std::string_view authority = url.substr(0, slash);
  size_t colon = authority.rfind(':');
  if (authority.starts_with('[')) {
    const size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos)
      return invalid_argument(base::cat("--base-url '", shown, "' has a '[' without a ']'"));
    parts.host = authority.substr(1, bracket - 1);
    if (colon < bracket) colon = std::string_view::npos;
  } else {
    parts.host = authority.substr(0, colon);
  }
  if (colon != std::string_view::npos) parts.port = authority.substr(colon + 1);
  uint16_t port = 0;  // getaddrinfo() would take 99999 as 34463
  const char* const port_end = parts.port.data() + parts.port.size();
  const auto [end, error] = std::from_chars(parts.port.data(), port_end, port);
  // In a request's head, a space or a line's end would begin something else.
  const bool plain =
      std::all_of(shown.begin(), shown.end(), [](char c) { return c > ' ' && c != 127; });
  if (parts.host.empty() || error != std::errc() || end != port_end || !plain)
    return invalid_argument(base::cat("--base-url '", shown, "' is not http://HOST:PORT"));
  return parts;
}

}  // namespace

Result<HttpTarget> find_target(std::string_view url, std::string api_key) {
  ATTUNE_ASSIGN_OR_RETURN(const UrlParts parts, split_url(url));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(parts.host.c_str(), parts.port.c_str(), &hints, &list);
  if (error != 0) {
    return not_found(
        base::cat("--base-url: ", parts.host, ":", parts.port, ": ", ::gai_strerror(error)));
  }
  HttpTarget target;
  const bool brackets = parts.host.find(':') != std::string::npos;
  target.authority =
      base::cat(brackets ? "[" : "", parts.host, brackets ? "]" : "", ":", parts.port);
  target.prefix = parts.prefix;
  target.api_key = std::move(api_key);
  std::memcpy(&target.address, list->ai_addr, list->ai_addrlen);
  target.address_size = list->ai_addrlen;
  ::freeaddrinfo(list);
  return target;
}

std::string http_request(const HttpTarget& target, std::string_view method, std::string_view path,
                         std::string_view body) {
  std::string out = base::cat(method, " ", target.prefix, path,
                              " HTTP/1.1\r\nHost: ", target.authority, "\r\nConnection: close\r\n");
  if (!target.api_key.empty()) out += base::cat("Authorization: Bearer ", target.api_key, "\r\n");
  if (!body.empty()) out += "Content-Type: application/json\r\n";
  if (!body.empty() || method == "POST") out += base::cat("Content-Length: ", body.size(), "\r\n");
  out += "\r\n";
  out += body;
  return out;
}

Result<std::unique_ptr<HttpCall>> HttpCall::start(const HttpTarget& target,
                                                  std::string_view request) {
  const int fd = ::socket(target.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return socket_error("cannot open a socket", errno);
  std::unique_ptr<HttpCall> call(new HttpCall(fd, request));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const auto* address = reinterpret_cast<const sockaddr*>(&target.address);
  if (::connect(fd, address, target.address_size) != 0 && errno != EINPROGRESS)
    return socket_error(base::cat("cannot connect to ", target.authority), errno);
  return call;
}

HttpCall::~HttpCall() {
  ::close(fd_);
}

Status HttpCall::send_some() {
  const ssize_t n = ::send(fd_, request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
  if (n >= 0) {
    sent_ += static_cast<size_t>(n);
    return {};
  }
  if (errno == EAGAIN || errno == EINTR) return {};
  // A server that refuses early answers and closes: what it said is worth more than the broken
  // pipe, so the rest is not sent and the answer is read.
  if ((errno == EPIPE || errno == ECONNRESET) && sent_ > 0) {
    sent_ = request_.size();
    return {};
  }
  return socket_error(sent_ == 0 ? "cannot connect" : "sending the request", errno);
}

Status HttpCall::advance(std::string& body) {
  if (is_sending()) return send_some();
  char buffer[kReadBytes];
  const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
  if (n > 0) return reply_.feed({buffer, static_cast<size_t>(n)}, body);
  if (n == 0) return reply_.end();
  if (errno == EAGAIN || errno == EINTR) return {};
  return socket_error("reading the reply", errno);
}

Result<HttpReply> fetch(const HttpTarget& target, std::string_view method, std::string_view path,
                        std::string_view body, double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  const std::string request = http_request(target, method, path, body);
  ATTUNE_ASSIGN_OR_RETURN(auto call, HttpCall::start(target, request));
  HttpReply reply;
  while (!call->done()) {
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    if (left <= 0) {
      return deadline_exceeded(
          base::cat(method, " ", path, ": no whole reply within ", timeout_s, " s"));
    }
    pollfd wait = {call->fd(), static_cast<short>(call->is_sending() ? POLLOUT : POLLIN), 0};
    if (::poll(&wait, 1, static_cast<int>(left * 1e3) + 1) < 0 && errno != EINTR)
      return socket_error("poll", errno);
    if (wait.revents == 0) continue;
    if (Status status = call->advance(reply.body); !status.ok())
      return status.with_context(base::cat(method, " ", path));
  }
  reply.status = call->reply().status();
  return reply;
}

}  // namespace attune::bench
