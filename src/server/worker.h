// One thread for work that would hold up the loop: tokenization of long prompts, waits for the
// engine.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace attune::server {

class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  // Ends what has been posted, then joins.
  ~Worker();
  void post(std::function<void()> task);  // any thread

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace attune::server
