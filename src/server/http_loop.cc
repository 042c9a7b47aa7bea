#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <future>

#include "base/check.h"
#include "base/guard.h"
#include "base/log.h"
#include "server/asio_loop.h"
#include "server/http.h"

namespace attune::server {

namespace asio = boost::asio;

Loop::Loop() : impl_(std::make_unique<Impl>()) {
  impl_->thread = std::thread([this] {
    for (;;) {
      const Status status = base::guarded([this] { impl_->io.run(); });
      if (status.ok()) return;
      // What the task held is let go: an exchange then answers 500 or breaks its stream.
      base::log_error("a task of the HTTP loop failed: ", status.message());
    }
  });
}

Loop::~Loop() {
  // What has been posted runs; what waits for a timer or a socket is dropped with the io_context.
  run([this] { impl_->signals.reset(); });
  impl_->io.stop();
  impl_->thread.join();
}

void Loop::post(std::function<void()> task) {
  asio::post(impl_->io, std::move(task));
}

void Loop::run(const std::function<void()>& task) {
  ATTUNE_CHECK(!on_thread());
  std::promise<void> done;
  post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

bool Loop::on_thread() const {
  return std::this_thread::get_id() == impl_->thread.get_id();
}

Loop::Timer Loop::after(double seconds, std::function<void()> task) {
  // The handle owns the timer; the wait keeps only a weak reference, so that dropping the handle
  // cancels it, also between expiry and call.
  struct State {
    asio::steady_timer timer;
    std::function<void()> task;
  };
  const auto delay = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e8)));
  auto state =
      std::make_shared<State>(State{asio::steady_timer(impl_->io, delay), std::move(task)});
  state->timer.async_wait([weak = std::weak_ptr<State>(state)](boost::system::error_code error) {
    if (error) return;
    if (auto alive = weak.lock()) {
      auto due = std::move(alive->task);
      due();
    }
  });
  return state;
}

void Loop::on_signal(std::function<void()> task) {
  run([&] {
    impl_->signals.emplace(impl_->io, SIGTERM, SIGINT);
    impl_->signals->async_wait(
        [this, task = std::move(task)](boost::system::error_code error, int) {
          if (error) return;
          task();
          impl_->signals->async_wait([](boost::system::error_code again, int signal) {
            if (!again) ::_exit(128 + signal);
          });
        });
  });
}

std::string_view HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

}  // namespace attune::server
