#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <condition_variable>
#include <mutex>
#include <unordered_map>

#include "base/check.h"
#include "base/log.h"
#include "server/http.h"
#include "server/http_connection.h"

namespace attune::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(Loop& l, const HttpOptions& options, HttpHandler& handler)
      : loop(l),
        host(std::make_shared<ConnectionHost>(ConnectionHost{l, options, handler, false, 0, {}})),
        acceptor(l.impl().io) {}

  Status bind();
  void accept();
  void accepted(tcp::socket socket);
  void gone(Connection* connection);
  void begin_stop();
  void close_all();

  Loop& loop;
  std::shared_ptr<ConnectionHost> host;
  tcp::acceptor acceptor;
  int port = 0;
  std::string reachable_host;
  bool loopback = false;
  Loop::Timer retry;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;  // the loop's

  std::atomic<size_t> count{0};
  std::mutex mutex;  // for the wait of stop() until count is 0
  std::condition_variable empty;
};

Status HttpServer::Impl::bind() {
  const auto& options = host->options;
  const std::string where = options.host + ":" + std::to_string(options.port);
  if (options.port < 0 || options.port > 65535) {
    return invalid_argument("port " + std::to_string(options.port) + " is not in 0..65535");
  }
  error_code error;
  if (options.host.empty()) {
    return invalid_argument(
        "--host is empty: give an address (127.0.0.1; 0.0.0.0 for every interface)");
  }
  tcp::resolver resolver(loop.impl().io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return invalid_argument("host '" + options.host +
                            "' is no address of this machine: " + error.message());
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return io_error("cannot listen on " + where + ": " + error.message() +
                    " (choose another --host or --port)");
  }
  port = acceptor.local_endpoint(error).port();
  const asio::ip::address address = endpoint.address();
  loopback = address.is_loopback();
  reachable_host = options.host;
  if (address.is_unspecified()) reachable_host = address.is_v4() ? "127.0.0.1" : "::1";
  return {};
}

void HttpServer::Impl::accept() {
  acceptor.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !self->acceptor.is_open()) return;
    if (error) {
      // Most likely out of file descriptors: those in use must end first.
      base::log_warning("accept: ", error.message());
      self->retry = self->loop.after(0.1, [weak = std::weak_ptr(self)] {
        if (auto alive = weak.lock()) alive->accept();
      });
      return;
    }
    self->accepted(std::move(socket));
    self->accept();
  });
}

void HttpServer::Impl::accepted(tcp::socket socket) {
  // A few more than the limit are told why; beyond that they are only closed.
  constexpr size_t kRefusedAtOnce = 64;
  const size_t limit = host->options.max_connections;
  if (connections.size() >= limit + kRefusedAtOnce) return;
  const bool full = connections.size() >= limit;
  auto connection = std::make_shared<Connection>(std::move(socket), host);
  connections.emplace(connection.get(), connection);
  count.store(connections.size());
  if (full) {
    connection->start_refused();
  } else {
    connection->start();
  }
}

void HttpServer::Impl::gone(Connection* connection) {
  connections.erase(connection);
  const std::lock_guard lock(mutex);
  count.store(connections.size());
  empty.notify_all();
}

void HttpServer::Impl::begin_stop() {
  host->stopping = true;
  error_code ignored;
  acceptor.close(ignored);
  retry.reset();
  const auto all = connections;
  for (const auto& [raw, connection] : all) connection->stop();
}

void HttpServer::Impl::close_all() {
  const auto all = connections;
  for (const auto& [raw, connection] : all) connection->close();
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(Loop& loop, const HttpOptions& options,
                                                       HttpHandler& handler) {
  auto impl = std::make_shared<Impl>(loop, options, handler);
  impl->host->on_gone = [raw = impl.get()](Connection* c) { raw->gone(c); };
  ATTUNE_RETURN_IF_ERROR(impl->bind());
  loop.run([&] { impl->accept(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  stop(0);
}

int HttpServer::port() const {
  return impl_->port;
}
const std::string& HttpServer::host() const {
  return impl_->reachable_host;
}
bool HttpServer::is_loopback() const {
  return impl_->loopback;
}
size_t HttpServer::connections() const {
  return impl_->count.load();
}

void HttpServer::stop(double seconds) {
  ATTUNE_CHECK(!impl_->loop.on_thread());
  impl_->loop.run([this] { impl_->begin_stop(); });
  {
    std::unique_lock lock(impl_->mutex);
    impl_->empty.wait_for(lock, std::chrono::duration<double>(seconds),
                          [this] { return impl_->count.load() == 0; });
  }
  impl_->loop.run([this] { impl_->close_all(); });
}

}  // namespace attune::server
