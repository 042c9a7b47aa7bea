// One thread for work that would hold up the loop: tokenization of long prompts, waits for the
// engine.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "server/http.h"

namespace attune::server {

class Worker {
 public:
  // The loop outlives this.
  explicit Worker(Loop& loop) : loop_(loop), thread_([this] { run(); }) {}
  ~Worker() { stop(); }

  // Runs `work` here and then `done` on the loop, with internal_error if `work` threw. Both are
  // destroyed on the loop, `done` also when it is never called: after stop(). Any thread.
  void post(std::function<void()> work, std::function<void(Status)> done);
  // Waits for the work that runs and drops what has not begun. Any thread but the loop's; may be
  // called again.
  void stop();

 private:
  struct Task {
    std::function<void()> work;
    std::function<void(Status)> done;
  };
  void run();

  Loop& loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace attune::server
