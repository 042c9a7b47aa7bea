// What stands behind a Loop; only http_*.cc include this.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <optional>
#include <thread>

#include "server/http.h"

namespace attune::server {

struct Loop::Impl {
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  std::optional<boost::asio::signal_set> signals;
  std::array<char, 64 << 10> scratch;  // where sockets are read into, one after the other
  std::thread thread;
};

}  // namespace attune::server
