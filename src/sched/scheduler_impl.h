// The scheduler's state; private to src/sched.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "sched/admission.h"
#include "sched/request_state.h"
#include "sched/scheduler.h"

namespace attune::sched {

class Scheduler::Impl {
 public:
  Impl(SchedulerConfig config, kv::PagePool& pool, kv::PrefixIndex* index);

  Status check(const Request& request) const;
  Status check_queue(int64_t waiting) const;
  Status add(RequestId id, Request request);
  std::optional<TokenEvent> abort(RequestId id);
  StepPlan plan();
  std::vector<TokenEvent> commit(const StepResult& result);
  std::vector<TokenEvent> fail_step(uint64_t id, const std::string& error);
  Status flush_cache();
  EngineStats stats() const;

  CacheControl* cache() { return cache_ ? &*cache_ : nullptr; }

  const SchedulerConfig& config() const { return config_; }
  bool has_work() const { return !seqs_.empty() || !in_flight_.empty(); }
  int32_t steps_in_flight() const { return static_cast<int32_t>(in_flight_.size()); }

 private:
  struct InFlightRow {
    RequestId request = 0;
    int32_t num_tokens = 0;
    bool sample = false;
  };
  struct Load {
    RequestId request = 0;
    kv::PageTransfer transfer;
  };
  struct InFlightStep {
    uint64_t id = 0;
    std::vector<InFlightRow> rows;
    std::vector<Load> loads;
  };
  // Higher priority first, then those that were retracted, then by arrival.
  struct QueueOrder {
    static auto key(const SeqState* s) {
      return std::tuple(-int64_t{s->priority}, !std::holds_alternative<Retracted>(s->state),
                        s->arrival);
    }
    bool operator()(const SeqState* a, const SeqState* b) const { return key(a) < key(b); }
  };
  using Queue = std::set<SeqState*, QueueOrder>;

  // scheduler_plan.cc
  void make_room_for_decode();
  bool wants_decode(const SeqState& s) const;
  bool needs_page(const SeqState& s) const;
  void retract(SeqState& s);
  std::vector<StepRow> decode_rows();
  int32_t prefill_budget(size_t decode_rows) const;
  void continue_prefills(StepPlan& plan, int32_t& budget);
  void admit(StepPlan& plan, int32_t budget);
  std::vector<SeqState*> candidates();
  void peek(std::vector<SeqState*> requests);
  bool waits_for_mate(SeqState& s);
  enum class Admitted : uint8_t { kYes, kLater /* others may go first */, kNoRoom };
  Admitted try_admit(SeqState& s, StepPlan& plan, int32_t& budget, PageForecast& forecast);
  void load_pages(SeqState& s, Seat& seat, int32_t pages, kv::PageReservation& fresh,
                  StepPlan& plan);
  void count_hits(SeqState& s, const Seat& seat, int32_t loaded);
  int32_t reusable_tokens(const SeqState& s) const;
  PageNeed need_of(const SeqState& s, int32_t now) const;
  StepRow prefill_row(SeqState& s, int32_t num_tokens);
  void begin_row(SeqState& s, const StepRow& row);
  void launch(StepPlan& plan);
  kv::OwnedPage take_page();
  int32_t available() const { return pool_.free() + (index_ ? index_->evictable() : 0); }

  // scheduler.cc
  InFlightStep pop_step(uint64_t id);
  void end_loads(InFlightStep& step, bool ok);
  void void_rows(SeqState& s);
  void settle_row(const InFlightRow& row, const RowResult& result, uint64_t step,
                  std::vector<TokenEvent>& events);
  void advance(SeqState& s, const InFlightRow& row, uint64_t step);
  void publish(SeqState& s);
  void accept_token(SeqState& s, const RowResult& result, TokenEvent& event);
  void row_over(SeqState& s, const InFlightRow& row);
  TokenEvent event_of(const SeqState& s) const;
  void finish(SeqState& s, FinishReason reason, TokenEvent& event);
  std::optional<Seat> leave_device(SeqState& s);
  void release(std::optional<Seat>& draining);
  void forget_if_over(SeqState& s);

  SchedulerConfig config_;
  kv::PagePool& pool_;
  kv::PrefixIndex* index_;
  std::optional<CacheControl> cache_;
  int32_t context_limit_;
  OutputGuess guess_;

  std::vector<int32_t> free_places_;  // must outlive the seats
  std::unordered_map<RequestId, std::unique_ptr<SeqState>> seqs_;
  Queue queue_;                     // Waiting and Retracted
  std::vector<SeqState*> running_;  // Prefilling and Decoding, in order of admission
  std::deque<InFlightStep> in_flight_;
  std::vector<Load> loads_;     // of the plan being made
  int32_t draining_pages_ = 0;  // come back when steps in flight are committed

  uint64_t arrivals_ = 0, plans_ = 0, steps_ = 0;
  EngineStats counters_;
  // Prompt tokens found on the device, in the host, in storage.
  std::array<uint64_t, 3> hit_tokens_{};
  std::array<uint64_t, 2> misses_{};  // lookups that found less than was wanted, there
};

}  // namespace attune::sched
