#include "server/worker.h"

#include <gtest/gtest.h>

#include <future>
#include <new>

namespace attune::server {
namespace {

TEST(Worker, DoneRunsOnTheLoopWithWhatWorkThrew) {
  Loop loop;
  Worker worker(loop);
  for (const bool throws : {false, true}) {
    std::promise<Status> done;
    worker.post(
        [&] {
          EXPECT_FALSE(loop.on_thread());
          if (throws) throw std::bad_alloc();
        },
        [&](Status status) {
          EXPECT_TRUE(loop.on_thread());
          done.set_value(std::move(status));
        });
    EXPECT_EQ(done.get_future().get().code(), throws ? Code::kInternal : Code::kOk);
  }
}

// A stop waits for one piece of work, not for all that clients have sent; and what the rest holds
// ends on the loop, as exchanges must.
TEST(Worker, StopDropsWhatHasNotBegun) {
  Loop loop;
  Worker worker(loop);
  std::promise<void> begun, go_on;
  worker.post(
      [&, wait = go_on.get_future().share()] {
        begun.set_value();
        wait.wait();
      },
      [](Status) {});
  bool ran = false, ended_on_loop = false;
  auto held = std::shared_ptr<int>(new int, [&](int* value) {
    delete value;
    ended_on_loop = loop.on_thread();
  });
  worker.post([&ran] { ran = true; }, [held = std::move(held)](Status) {});
  begun.get_future().wait();
  std::thread stopper([&] { worker.stop(); });
  worker.post([&ran] { ran = true; }, [](Status) {});
  go_on.set_value();
  stopper.join();
  worker.stop();
  EXPECT_TRUE(ended_on_loop);
}

}  // namespace
}  // namespace attune::server
