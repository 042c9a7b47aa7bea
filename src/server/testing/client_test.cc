#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "server/testing/client.h"

namespace attune::server::testing {

Client::Client(int port, double timeout_seconds) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(timeout_seconds);
  limit.tv_usec = static_cast<suseconds_t>((timeout_seconds - std::floor(timeout_seconds)) * 1e6);
  const int on = 1;
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
}

Client::~Client() {
  close();
}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void Client::shut_down() {
  ::shutdown(fd_, SHUT_WR);
}

void Client::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Client::reset() {
  const linger hard{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close();
}

Reply Client::get(const std::string& path, const std::string& headers) {
  send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n");
  return read_reply();
}

bool Client::send_post(const std::string& path, const std::string& body,
                       const std::string& headers) {
  return send("POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" +
              "Content-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body);
}

Reply Client::post(const std::string& path, const std::string& body, const std::string& headers) {
  send_post(path, body, headers);
  return read_reply();
}

bool Client::fill() {
  char buffer[16 << 10];
  const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  in_.append(buffer, static_cast<size_t>(n));
  return true;
}

Reply Client::read_head() {
  Reply reply;
  stream_over_ = false;
  events_.clear();
  size_t end;
  while ((end = in_.find("\r\n\r\n")) == std::string::npos) {
    if (!fill()) return reply;
  }
  std::string_view head = std::string_view(in_).substr(0, end + 2);
  reply.status = std::stoi(std::string(head.substr(9, 3)));
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t stop = head.find("\r\n", at);
    const std::string_view line = head.substr(at, stop - at);
    const size_t colon = line.find(": ");
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    reply.headers[name] = std::string(line.substr(colon + 2));
    at = stop + 2;
  }
  in_.erase(0, end + 4);
  return reply;
}

std::optional<std::string> Client::read_chunk() {
  size_t end;
  while ((end = in_.find("\r\n")) == std::string::npos) {
    if (!fill()) return std::nullopt;
  }
  const size_t size = std::stoul(in_.substr(0, end), nullptr, 16);
  while (in_.size() < end + 2 + size + 2) {
    if (!fill()) return std::nullopt;
  }
  std::string chunk = in_.substr(end + 2, size);
  in_.erase(0, end + 2 + size + 2);
  return chunk;
}

Reply Client::read_reply(bool no_body) {
  Reply reply = read_head();
  if (reply.status == 0 || no_body || reply.status == 204 || reply.status == 100) return reply;
  if (reply.headers.count("transfer-encoding")) {
    for (;;) {
      auto chunk = read_chunk();
      if (!chunk || chunk->empty()) return reply;
      reply.body += *chunk;
    }
  }
  if (!reply.headers.count("content-length")) {
    while (fill()) {
    }
    reply.body.swap(in_);
    return reply;
  }
  const size_t size = std::stoul(reply.headers["content-length"]);
  while (in_.size() < size && fill()) {
  }
  reply.body = in_.substr(0, size);
  in_.erase(0, std::min(size, in_.size()));
  return reply;
}

std::optional<std::string> Client::next_event() {
  for (;;) {
    const size_t end = events_.find("\n\n");
    if (end != std::string::npos) {
      std::string event = events_.substr(0, end);
      events_.erase(0, end + 2);
      return event.rfind("data: ", 0) == 0 ? event.substr(6) : event;
    }
    if (stream_over_) return std::nullopt;
    auto chunk = read_chunk();
    if (!chunk || chunk->empty()) {
      stream_over_ = true;
    } else {
      events_ += *chunk;
    }
  }
}

bool Client::at_end() {
  char byte;
  const ssize_t n = ::recv(fd_, &byte, 1, 0);
  return n == 0 || (n < 0 && errno == ECONNRESET);
}

}  // namespace attune::server::testing
