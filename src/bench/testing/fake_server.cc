#include "bench/testing/fake_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace attune::bench::testing {
namespace {

// False when the client left before its request was whole.
bool read_request(int fd, FakeRequest& request) {
  std::string in;
  size_t head_end = std::string::npos, body_size = 0;
  for (;;) {
    if (head_end == std::string::npos) {
      head_end = in.find("\r\n\r\n");
      if (head_end != std::string::npos) {
        const size_t field = in.find("Content-Length: ");
        if (field < head_end) std::from_chars(&in[field + 16], &in[head_end], body_size);
      }
    }
    if (head_end != std::string::npos && in.size() >= head_end + 4 + body_size) break;
    char buffer[16384];
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0) return false;
    in.append(buffer, static_cast<size_t>(n));
  }
  const size_t space = in.find(' ');
  request.method = in.substr(0, space);
  request.path = in.substr(space + 1, in.find(' ', space + 1) - space - 1);
  request.head = in.substr(0, head_end);
  request.body = in.substr(head_end + 4);
  return true;
}

}  // namespace

const char* const kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    "Transfer-Encoding: chunked\r\n\r\n";

std::string sized_reply(int status, std::string_view body) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\ncontent-type: application/json\r\n" +
         "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

std::string event(std::string_view data) {
  return "data: " + std::string(data) + "\n\n";
}

bool FakeConnection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void FakeConnection::send_split(std::string_view bytes, size_t at_most) {
  for (; !bytes.empty(); bytes.remove_prefix(std::min(at_most, bytes.size())))
    if (!send(bytes.substr(0, at_most))) return;
}

bool FakeConnection::send_chunk(std::string_view bytes) {
  char size[20];
  auto [end, error] = std::to_chars(size, size + sizeof size, bytes.size(), 16);
  return send(std::string(size, end) + "\r\n" + std::string(bytes) + "\r\n");
}

void FakeConnection::reset() {
  const linger now = {1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

FakeServer::FakeServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, name, size) != 0 || ::listen(listener_, 4096) != 0 ||
      ::getsockname(listener_, name, &size) != 0) {
    ADD_FAILURE() << "cannot listen";
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] {
    for (int fd; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      const int on = 1;  // so that split replies arrive split
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  });
}

FakeServer::~FakeServer() {
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  ::close(listener_);
}

void FakeServer::serve(int fd) {
  FakeRequest request;
  if (read_request(fd, request)) {
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    FakeConnection connection(fd);
    handler_(request, connection);
  }
  ::close(fd);
}

std::vector<FakeRequest> FakeServer::requests() const {
  std::lock_guard lock(mutex_);
  return requests_;
}

}  // namespace attune::bench::testing
