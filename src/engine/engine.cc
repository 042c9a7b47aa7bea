// The step loop. One thread owns scheduler and cache; clients talk to it through an inbox, the
// device through completions. Each turn: take the inbox, commit what the device has finished, plan
// and launch the next step. Up to two steps are in flight, so the device does not wait for the
// host.
#include "attune/engine.h"

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/guard.h"
#include "base/log.h"
#include "engine/load.h"
#include "engine/model_runner.h"
#include "engine/throughput.h"
#include "sched/scheduler.h"

namespace attune {
namespace {

using engine::LoadedEngine;
using engine::ModelRunner;
using Clock = std::chrono::steady_clock;

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(LoadedEngine loaded, std::ofstream record)
      : loaded_(std::move(loaded)), record_(std::move(record)) {
    publish_stats();  // the pool's size is asked for before the first step
    thread_ = std::thread([this] { loop(); });
  }

  ~EngineImpl() override {
    post([this] {
      stopping_ = true;
      if (sched::CacheControl* cache = loaded_.scheduler->cache()) cache->stop();
      abort_all();
    });
    thread_.join();
  }

  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override {
    ATTUNE_RETURN_IF_ERROR(loaded_.scheduler->check(request));
    const RequestId id = next_id_.fetch_add(1);
    auto add = [this, id, request = std::move(request), sink = std::move(sink)]() mutable {
      sinks_.emplace(id, std::move(sink));
      blocked_ = false;
      Status added;
      const Status ran =
          base::guarded([&] { added = loaded_.scheduler->add(id, std::move(request)); });
      if (ran.ok() && added.ok()) return;
      deliver(error_event(id, ran.ok() ? added.message() : ran.message()));
    };
    {
      std::lock_guard lock(mutex_);
      if (draining_) return unavailable("the server is shutting down");
      ATTUNE_RETURN_IF_ERROR(loaded_.scheduler->check_queue(waiting_ + in_inbox_));
      inbox_.push_back(std::move(add));
      ++in_inbox_;
    }
    wake_.notify_one();
    return id;
  }

  void abort(RequestId id) override {
    post([this, id] {
      if (std::optional<TokenEvent> last = loaded_.scheduler->abort(id)) deliver(std::move(*last));
    });
  }

  // Copies beside the steps are waited for: who asks has heard the last token of all requests.
  Status flush_cache() override {
    auto answer = std::make_shared<std::promise<Status>>();
    std::future<Status> status = answer->get_future();
    post([this, answer] {
      auto flush = [this, answer] {
        const Status status = loaded_.scheduler->flush_cache();
        publish_stats();
        answer->set_value(status);
      };
      if (loaded_.scheduler->has_work() || !loaded_.copies) return flush();  // it says why not
      when_copied_.push_back(flush);
    });
    return status.get();
  }

  Status clear_storage() override {
    kv::KvTier* tier = loaded_.copies ? loaded_.copies->tier() : nullptr;
    if (!tier)
      return invalid_argument("there is no storage tier: start with --hicache-storage-backend");
    if (const Status cleared = tier->clear(); !cleared.ok())  // whatever it is, not the client's
      return {cleared.code() == Code::kUnavailable ? Code::kUnavailable : Code::kIoError,
              "not everything in storage is cleared: " + cleared.message()};
    return call<Status>([&] {
      loaded_.scheduler->cache()->forget_stored();
      publish_stats();
      return Status();
    });
  }

  void drain(double seconds) override {
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                     std::chrono::duration<double>(seconds));
    auto idle = std::make_shared<std::promise<void>>();
    std::future<void> done = idle->get_future();
    {
      std::lock_guard lock(mutex_);
      draining_ = true;
    }
    post([this, idle] { when_idle_.push_back([idle] { idle->set_value(); }); });
    if (done.wait_until(end) != std::future_status::ready) {
      post([this] { abort_all(); });
      done.wait();
    }
    if (loaded_.copies && loaded_.copies->tier()) save_everything(end);
  }

  const ModelInfo& model() const override { return loaded_.info; }
  std::string resolution_json() const override { return loaded_.resolution_json; }
  std::string resolution_table() const override { return loaded_.resolution_table; }

  EngineStats stats() const override {
    EngineStats stats;
    {
      std::lock_guard lock(stats_mutex_);
      stats = stats_;
      stats.generation_throughput = throughput_.per_second(Clock::now());
    }
    // As it is now: copies and pinning go on where no step does.
    for (CacheTierStats& tier : stats.cache_tiers) {
      tier.bytes = tier.pages * loaded_.page_bytes;
      tier.budget_bytes = tier.total_pages * loaded_.page_bytes;
    }
    if (loaded_.copies) loaded_.copies->fill(stats);
    stats.hicache.held_steps = loaded_.runner->held_steps();
    return stats;
  }

 private:
  // What is in the cache goes down to storage, as far as there is time.
  void save_everything(Clock::time_point end) {
    auto saved = std::make_shared<std::promise<void>>();
    std::future<void> done = saved->get_future();
    post([this, saved] {
      loaded_.scheduler->cache()->save_everything();
      when_copied_.push_back([saved] { saved->set_value(); });
    });
    if (done.wait_until(end) == std::future_status::ready) return;
    base::log_warning("not all cached pages have been written to storage: there was no more time");
  }

  // ---- the inbox: functions that run on the engine's thread ----
  void post(std::function<void()> fn) {
    {
      std::lock_guard lock(mutex_);
      inbox_.push_back(std::move(fn));
    }
    wake_.notify_one();
  }
  // On a thread of the copies: one of which nobody hears would be waited for for ever.
  void must_post(std::function<void()> fn) {
    const Status status = base::guarded([&] { post(std::move(fn)); });
    if (status.ok()) return;
    base::log_error("fatal: a copy's end could not be told (", status.message(),
                    "); the process ends");
    std::abort();
  }
  template <typename T, typename Fn>
  T call(Fn fn) {
    std::promise<T> answer;
    post([&] {
      std::optional<T> value;
      const Status ran = base::guarded([&] { value.emplace(fn()); });
      answer.set_value(ran.ok() ? std::move(*value) : T(ran));
    });
    return answer.get_future().get();
  }

  // ---- the engine's thread ----
  void loop() {
    const Status status = base::guarded([this] {
      while (turn()) {
      }
      loaded_.stream->synchronize();
    });
    if (status.ok()) return;
    // Half a plan or half a commit: who owns which page is not known any more.
    base::log_error("fatal: the engine's scheduler was interrupted (", status.message(),
                    ") and cannot go on; the process ends");
    std::abort();
  }

  // One turn; false when the engine stops.
  bool turn() {
    std::deque<std::function<void()>> inbox;
    size_t finished = 0;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] { return !inbox_.empty() || finished_steps_ > 0 || can_plan(); };
      const auto deadline = loaded_.copies ? loaded_.copies->next_deadline() : std::nullopt;
      if (deadline) {
        wake_.wait_until(lock, *deadline, ready);
      } else {
        wake_.wait(lock, ready);
      }
      inbox.swap(inbox_);
      waiting_ += std::exchange(in_inbox_, 0);
      finished = std::exchange(finished_steps_, 0);
    }
    const Clock::time_point woken = Clock::now();
    if (loaded_.copies) prepare_copies();
    for (std::function<void()>& fn : inbox) fn();
    std::vector<TokenEvent> events;
    for (; finished > 0; --finished) commit_oldest(events);
    if (loaded_.copies) loaded_.copies->set_alone(in_flight_.empty());  // so are its loads
    if (can_plan()) plan_and_launch();
    if (loaded_.copies) start_copies();
    publish_stats();  // first, so that who hears of the last token also reads it counted
    for (TokenEvent& event : events) deliver(std::move(event));
    host_seconds_ += std::chrono::duration<double>(Clock::now() - woken).count();
    if (loaded_.scheduler->has_work()) return true;
    for (auto& idle : std::exchange(when_idle_, {})) idle();
    return !stopping_ || (loaded_.copies && loaded_.scheduler->cache()->busy());
  }

  // ---- copies beside the steps ----
  void prepare_copies() {
    loaded_.pool->open_host(loaded_.copies->host_slots());
    for (const RequestId id : loaded_.copies->overdue(Clock::now())) {
      loaded_.scheduler->cache()->cut_prefetch(id);
      blocked_ = false;
    }
    loaded_.scheduler->cache()->set_rates(
        {loaded_.copies->load_bytes_per_second(), prefill_rate_.per_second()});
  }

  // After the step, so that what the step waits for goes first.
  void start_copies() {
    loaded_.copies->set_alone(in_flight_.empty());
    sched::CacheWork work = loaded_.scheduler->cache()->take_work();
    if (!work.empty()) loaded_.copies->start(std::move(work), answers_);
    if (loaded_.scheduler->cache()->holds_pages()) return;
    for (auto& copied : std::exchange(when_copied_, {})) copied();
  }

  void on_copied(const std::vector<uint64_t>& ops, bool ok) {
    for (const uint64_t op : ops) {
      loaded_.copies->ended(op);
      loaded_.scheduler->cache()->on_copied(op, ok);
    }
    blocked_ = false;
  }

  // Not upon a step that was not launched: its places hold nothing that a next step could read.
  bool can_plan() const {
    const bool failed = !in_flight_.empty() && !in_flight_.back().error.empty();
    return !blocked_ && !failed && loaded_.scheduler->has_work();
  }

  void plan_and_launch() {
    sched::StepPlan plan = loaded_.scheduler->plan();
    blocked_ = loaded_.scheduler->must_commit(plan);
    if (plan.empty()) {
      // Nothing to do, nothing running: whoever waits, waits for a client.
      if (in_flight_.empty()) blocked_ = true;
      return;
    }
    record(plan);
    Step& step = in_flight_.emplace_back(plan.id);
    step.prefill_tokens = plan.loads.empty() ? prefill_tokens(plan) : 0;
    const Status status = base::guarded([&] {
      if (!plan.loads.empty()) step.load = loaded_.copies->load(plan.loads);
      auto launched =
          loaded_.runner->launch(std::move(plan), step.load ? step.load->gate() : nullptr);
      if (launched.ok()) {
        step.result = std::move(launched).value();
      } else {
        step.error = launched.status().to_string();
      }
    });
    if (!status.ok()) step.error = status.to_string();
    // A step waits for its loads; one that was not launched must, too.
    if (!step.error.empty() && step.load)
      loaded_.stream->launch([gate = step.load->gate(), s = loaded_.stream.get(),
                              last = std::ssize(loaded_.runner->kv()) - 1] {
        gate->wait(static_cast<int32_t>(last), *s);
      });
    auto finished = [this, timing = step.timing] {
      timing->finished = Clock::now();
      {
        std::lock_guard lock(mutex_);
        ++finished_steps_;
      }
      wake_.notify_one();
    };
    loaded_.stream->notify(finished);
  }

  void record(const sched::StepPlan& plan) {
    if (!record_.is_open()) return;
    record_ << plan.to_json() << '\n' << std::flush;
    if (record_) return;
    base::log_error("--record-plans: cannot write step ", plan.id, " (", std::strerror(errno),
                    "); nothing more is recorded");
    record_.close();
  }

  void commit_oldest(std::vector<TokenEvent>& events) {
    const Step step = std::move(in_flight_.front());
    in_flight_.pop_front();
    // The step itself has waited for its loads, so this does not take long.
    if (step.load)
      if (const Status loaded = step.load->wait(); !loaded.ok() && step.result) {
        base::log_error("step ", step.id, ": pages did not come from the host: ", loaded.message(),
                        "; they are computed again");
        step.result->load_error = loaded.message();
      }
    prefill_rate_.add(step.prefill_tokens, step.timing->launched, step.timing->finished);
    if (!step.error.empty()) base::log_error("step ", step.id, " failed: ", step.error);
    std::vector<TokenEvent> news = step.error.empty()
                                       ? loaded_.scheduler->commit(*step.result)
                                       : loaded_.scheduler->fail_step(step.id, step.error);
    size_t tokens = 0;
    for (TokenEvent& event : news) {
      tokens += event.tokens.size();
      events.push_back(std::move(event));
    }
    {
      std::lock_guard lock(stats_mutex_);
      throughput_.add(Clock::now(), tokens);
    }
    blocked_ = false;
  }

  void deliver(TokenEvent event) {
    const auto it = sinks_.find(event.request);
    if (it == sinks_.end()) return;
    const std::shared_ptr<TokenSink> sink = it->second;
    const RequestId id = event.request;
    if (event.finish != FinishReason::kNone) sinks_.erase(it);
    const Status told = base::guarded([&] { sink->on_event(std::move(event)); });
    if (told.ok()) return;
    base::log_error("request ", id, " ends, as its news were lost: ", told.message());
    sinks_.erase(id);
    loaded_.scheduler->abort(id);
    const Status again = base::guarded([&] { sink->on_event(error_event(id, told.message())); });
    if (!again.ok()) base::log_error("request ", id, " could not be told of its end");
  }

  static TokenEvent error_event(RequestId id, std::string error) {
    TokenEvent event;
    event.request = id;
    event.finish = FinishReason::kError;
    event.error = std::move(error);
    return event;
  }

  void abort_all() {
    std::vector<RequestId> ids;
    for (const auto& [id, sink] : sinks_) ids.push_back(id);
    for (RequestId id : ids)
      if (std::optional<TokenEvent> last = loaded_.scheduler->abort(id)) deliver(std::move(*last));
  }

  void publish_stats() {
    EngineStats stats = loaded_.scheduler->stats();
    for (const attention::RouteCount& r : loaded_.router->counts())
      stats.attention_routes.push_back({attention::phase_name(r.phase), r.backend,
                                        attention::path_name(r.path), r.count, r.fallback});
    stats.host_seconds = host_seconds_;
    stats.device_failure = loaded_.stream->status().message();
    {
      std::lock_guard lock(mutex_);
      waiting_ = stats.waiting_requests;
    }
    std::lock_guard lock(stats_mutex_);
    stats_ = std::move(stats);
  }

  static int32_t prefill_tokens(const sched::StepPlan& plan) {
    int32_t tokens = 0;
    for (const sched::StepRow& row : plan.rows)
      if (row.kind == sched::RowKind::kPrefill) tokens += row.num_tokens;
    return tokens;
  }

  struct Timing {
    Clock::time_point launched = Clock::now(), finished;
  };
  struct Step {
    explicit Step(uint64_t i) : id(i) {}
    uint64_t id;
    int32_t prefill_tokens = 0;  // of a step that waits for no load
    std::shared_ptr<Timing> timing = std::make_shared<Timing>();
    std::shared_ptr<engine::Copies::Load> load;  // null: nothing
    std::shared_ptr<sched::StepResult> result;
    std::string error;  // not empty: it was not launched
  };

  // What copies say, on any thread.
  const engine::Copies::Answers answers_ = {
      .copied =
          [this](std::vector<uint64_t> ops, bool ok) {
            must_post([this, ops = std::move(ops), ok] { on_copied(ops, ok); });
          },
      .matched =
          [this](uint64_t op, int32_t pages) {
            must_post([this, op, pages] {
              loaded_.scheduler->cache()->on_matched(op, pages);
              blocked_ = false;
            });
          }};

  std::atomic<RequestId> next_id_{1};

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> inbox_;  // under mutex_
  size_t finished_steps_ = 0;                // under mutex_
  // Requests in the scheduler's queue after the last turn, and in the inbox. Under mutex_.
  int32_t waiting_ = 0, in_inbox_ = 0;
  bool draining_ = false;  // under mutex_
  // Its copies post until they are gone.
  LoadedEngine loaded_;
  std::ofstream record_;

  // Engine's thread only.
  std::unordered_map<RequestId, std::shared_ptr<TokenSink>> sinks_;
  std::deque<Step> in_flight_;
  std::vector<std::function<void()>> when_idle_, when_copied_;
  engine::PrefillRate prefill_rate_;
  bool blocked_ = false, stopping_ = false;
  double host_seconds_ = 0;  // at work

  mutable std::mutex stats_mutex_;
  EngineStats stats_;              // under stats_mutex_
  engine::Throughput throughput_;  // under stats_mutex_
  std::thread thread_;             // last: it uses all of the above
};

}  // namespace

namespace engine {

std::unique_ptr<Engine> start_engine(LoadedEngine loaded, std::ofstream record) {
  return std::make_unique<EngineImpl>(std::move(loaded), std::move(record));
}

}  // namespace engine

Result<std::unique_ptr<Engine>> Engine::create(const Options& options) {
  std::ofstream record;
  if (!options.record_plans.empty()) {
    record.open(options.record_plans);
    if (!record) return io_error("--record-plans: cannot write " + options.record_plans);
  }
  ATTUNE_ASSIGN_OR_RETURN(LoadedEngine loaded, engine::load_engine(options));
  return engine::start_engine(std::move(loaded), std::move(record));
}

}  // namespace attune
