#include "server/worker.h"

#include "base/guard.h"

namespace attune::server {

void Worker::post(std::function<void()> work, std::function<void(Status)> done) {
  auto task = std::make_shared<Task>(Task{std::move(work), std::move(done)});
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void Worker::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  loop_.run([this] {
    decltype(tasks_) dropped;
    const std::lock_guard lock(mutex_);
    dropped.swap(tasks_);
  });
}

void Worker::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    Status status = base::guarded(task->work);
    loop_.post([task = std::move(task), status = std::move(status)] { task->done(status); });
  }
}

}  // namespace attune::server
