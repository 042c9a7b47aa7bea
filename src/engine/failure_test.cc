// What fails under the step loop: launches, sinks, the file of recorded plans. Whoever is hit is
// told, the others go on, and no page stays behind.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <new>
#include <set>

#include "base/guard.h"
#include "engine/load.h"
#include "engine/testing.h"

namespace attune::engine {
namespace {

using testing::Collector;
using testing::expect_nothing_held;
using testing::small_options;
using testing::start;
using testing::Started;
using testing::tokens;

std::vector<TokenId> prompt(int32_t n, TokenId first = 3) {
  std::vector<TokenId> ids;
  for (int32_t i = 0; i < n; ++i) ids.push_back(3 + (first + i) % 90);
  return ids;
}

// The real runner, but for the launches that the test makes fail.
class FailingRunner final : public Runner {
 public:
  using Fails = std::function<Status(uint64_t launch)>;
  FailingRunner(std::unique_ptr<Runner> real, Fails fails)
      : real_(std::move(real)), fails_(std::move(fails)) {}
  Result<std::shared_ptr<sched::StepResult>> launch(sched::StepPlan plan,
                                                    std::shared_ptr<kv::LayerGate> loads) override {
    // What a failed step would have left, nothing may be planned upon.
    for (const sched::StepRow& row : plan.rows) EXPECT_FALSE(failed_.contains(row.request));
    Status status;
    const Status thrown = base::guarded([&] { status = fails_(launches_++); });
    if (!thrown.ok() || !status.ok()) {
      for (const sched::StepRow& row : plan.rows) failed_.insert(row.request);
    }
    if (!thrown.ok()) throw std::bad_alloc();
    ATTUNE_RETURN_IF_ERROR(status);
    return real_->launch(std::move(plan), std::move(loads));
  }
  std::span<const kv::PagedKvView> kv() const override { return real_->kv(); }

 private:
  std::set<RequestId> failed_;
  std::unique_ptr<Runner> real_;
  Fails fails_;
  uint64_t launches_ = 0;
};

std::unique_ptr<Engine> make_failing(const Options& options, FailingRunner::Fails fails) {
  Result<LoadedEngine> loaded = load_engine(options);
  EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
  if (!loaded.ok()) return nullptr;
  loaded->runner = std::make_unique<FailingRunner>(std::move(loaded->runner), std::move(fails));
  return start_engine(std::move(loaded).value(), {});
}

// At every launch there is, by a Status and by an exception, with one step in flight and with two.
TEST(FailedLaunch, EndsItsRequestsAndNoOther) {
  auto good = make_failing(small_options(), [](uint64_t) { return Status(); });
  ASSERT_TRUE(good);
  std::vector<std::vector<TokenId>> want;
  for (int i = 0; i < 4; ++i) {
    auto s = start(*good, prompt(20, i), tokens(6));
    s->wait();
    want.push_back(s->tokens);
  }
  for (const bool overlap : {true, false}) {
    for (uint64_t at = 0; at < 8; ++at) {
      Options options = small_options();
      options.disable_overlap_schedule = !overlap;
      options.max_running_requests = 2;  // two of the four wait, and must not be hit
      options.chunked_prefill_size = 16;
      auto engine = make_failing(options, [at](uint64_t launch) {
        if (launch == at && at % 2) throw std::bad_alloc();
        return launch == at ? internal_error("the device is gone") : Status();
      });
      ASSERT_TRUE(engine);
      std::vector<Started> all;
      for (int i = 0; i < 4; ++i) all.push_back(start(*engine, prompt(20, i), tokens(6)));
      int failed = 0;
      for (int i = 0; i < 4; ++i) {
        all[i]->wait();
        if (all[i]->finish == FinishReason::kError) {
          ++failed;
          EXPECT_NE(all[i]->error.find(at % 2 ? "out of memory" : "the device is gone"),
                    std::string::npos)
              << all[i]->error;
        } else {
          EXPECT_EQ(all[i]->finish, FinishReason::kLength);
          EXPECT_EQ(all[i]->tokens, want[i]) << i;
        }
      }
      EXPECT_GE(failed, 1) << at;
      EXPECT_LE(failed, 2) << at;
      EXPECT_EQ(engine->stats().requests_failed, static_cast<uint64_t>(failed));
      expect_nothing_held(*engine);
      auto after = start(*engine, prompt(20, 0), tokens(6));
      after->wait();
      EXPECT_EQ(after->tokens, want[0]);
    }
  }
}

// A launch may take its time (a device that is full); who submits does not wait for it.
TEST(Engine, SubmitDoesNotWaitForTheStepLoop) {
  std::promise<void> go_on;
  auto engine = make_failing(small_options(), [wait = go_on.get_future().share()](uint64_t) {
    wait.wait();
    return Status();
  });
  ASSERT_TRUE(engine);
  std::vector<Started> all;
  for (int i = 0; i < 5; ++i) all.push_back(start(*engine, prompt(5, i), tokens(2)));
  // Refusals come at once too.
  EXPECT_EQ(engine->submit({.prompt = {}}, std::make_shared<Collector>()).status().code(),
            Code::kInvalidArgument);
  go_on.set_value();
  for (Started& s : all) {
    s->wait();
    EXPECT_EQ(s->tokens.size(), 2u);
  }
  expect_nothing_held(*engine);
}

class ThrowingSink final : public TokenSink {
 public:
  void on_event(TokenEvent event) override {
    if (event.finish == FinishReason::kError) return end_.set_value(event.error);
    throw std::bad_alloc();
  }
  std::string error() { return end_.get_future().get(); }

 private:
  std::promise<std::string> end_;
};

TEST(Engine, ASinkThatThrowsEndsItsRequestOnly) {
  auto engine = testing::make_engine(small_options());
  ASSERT_TRUE(engine);
  auto sink = std::make_shared<ThrowingSink>();
  ASSERT_TRUE(engine->submit({.prompt = prompt(5), .sampling = tokens(50)}, sink).ok());
  auto other = start(*engine, prompt(20), tokens(30));
  EXPECT_EQ(sink->error(), "out of memory");
  other->wait();
  EXPECT_EQ(other->tokens.size(), 30u);
  engine->drain(10);
  EXPECT_EQ(engine->stats().used_pages, 0);
}

// Told once, and the requests do not notice.
TEST(Engine, PlansThatCannotBeWrittenAreTold) {
  Options options = small_options();
  options.record_plans = "/dev/full";
  ::testing::internal::CaptureStderr();
  {
    auto engine = testing::make_engine(options);
    ASSERT_TRUE(engine);
    auto s = start(*engine, prompt(20), tokens(20));
    s->wait();
    EXPECT_EQ(s->finish, FinishReason::kLength);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t told = log.find("--record-plans");
  EXPECT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("--record-plans", told + 1), std::string::npos) << log;
}

}  // namespace
}  // namespace attune::engine
