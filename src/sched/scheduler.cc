#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/request_check.h"
#include "sched/scheduler_impl.h"

namespace attune::sched {
namespace {

// A seed of its own for each request, the same in each run (splitmix64's finaliser).
uint64_t seed_for(uint64_t random_seed, RequestId id) {
  uint64_t z = random_seed + (id + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

bool contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config, kv::PagePool& pool, kv::PrefixIndex* index)
    : impl_(std::make_unique<Impl>(std::move(config), pool, index)) {}
Scheduler::~Scheduler() = default;
Status Scheduler::check(const Request& request) const {
  return impl_->check(request);
}
Status Scheduler::check_queue(int64_t waiting) const {
  return impl_->check_queue(waiting);
}
Status Scheduler::add(RequestId id, Request request) {
  return impl_->add(id, std::move(request));
}
std::optional<TokenEvent> Scheduler::abort(RequestId id) {
  return impl_->abort(id);
}
StepPlan Scheduler::plan() {
  return impl_->plan();
}
std::vector<TokenEvent> Scheduler::commit(const StepResult& r) {
  return impl_->commit(r);
}
std::vector<TokenEvent> Scheduler::fail_step(uint64_t id, const std::string& error) {
  return impl_->fail_step(id, error);
}
CacheControl* Scheduler::cache() {
  return impl_->cache();
}
bool Scheduler::has_work() const {
  return impl_->has_work();
}
int32_t Scheduler::steps_in_flight() const {
  return impl_->steps_in_flight();
}
bool Scheduler::must_commit(const StepPlan& last) const {
  return steps_in_flight() > 0 &&
         (last.empty() || steps_in_flight() >= config().max_steps_in_flight);
}
Status Scheduler::flush_cache() {
  return impl_->flush_cache();
}
EngineStats Scheduler::stats() const {
  return impl_->stats();
}
const SchedulerConfig& Scheduler::config() const {
  return impl_->config();
}

Scheduler::Impl::Impl(SchedulerConfig config, kv::PagePool& pool, kv::PrefixIndex* index)
    : config_(std::move(config)),
      pool_(pool),
      index_(index),
      context_limit_(sched::context_limit(config_, int64_t{pool.total()} * pool.page_size())),
      guess_(config_.conservativeness) {
  ATTUNE_CHECK(config_.vocab_size > 0 && config_.max_model_len > 0);
  ATTUNE_CHECK(config_.max_running_requests > 0 && config_.max_steps_in_flight > 0);
  ATTUNE_CHECK(config_.chunked_prefill_size == -1 || config_.chunked_prefill_size > 0);
  ATTUNE_CHECK(config_.max_prefill_tokens > 0);
  ATTUNE_CHECK(!config_.cache.enabled || index_ != nullptr);
  if (config_.cache.enabled) cache_.emplace(config_.cache, pool_, *index_);
  for (int32_t place = config_.max_running_requests; place-- > 0;) free_places_.push_back(place);
}

Status Scheduler::Impl::check(const Request& request) const {
  return check_request(config_, int64_t{pool_.total()} * pool_.page_size(), request);
}

Status Scheduler::Impl::check_queue(int64_t waiting) const {
  if (config_.max_queued_requests <= 0 || waiting < config_.max_queued_requests) return {};
  return resource_exhausted("the queue is full (max_queued_requests = " +
                            std::to_string(config_.max_queued_requests) + "); try again later");
}

Status Scheduler::Impl::add(RequestId id, Request request) {
  ATTUNE_CHECK(!seqs_.contains(id));
  ATTUNE_RETURN_IF_ERROR(check(request));
  ATTUNE_RETURN_IF_ERROR(check_queue(static_cast<int64_t>(queue_.size())));
  auto s = std::make_unique<SeqState>();
  s->id = id;
  s->arrival = ++arrivals_;
  s->waiting_since = plans_;
  s->priority = request.priority;
  s->sampling = std::move(request.sampling);
  s->tokens = std::move(request.prompt);
  s->prompt_tokens = s->length();
  SamplingParams& p = s->sampling;
  p.max_new_tokens = std::min(p.max_new_tokens, context_limit_ - s->prompt_tokens);
  if (!p.seed)
    p.seed = config_.deterministic ? config_.random_seed : seed_for(config_.random_seed, id);
  // Position 0 has no log-probability: nothing comes before it.
  if (p.prompt_logprob_start >= 0 && std::max(p.prompt_logprob_start, 1) < s->prompt_tokens)
    s->logprobs_next = std::max(p.prompt_logprob_start, 1);
  if (index_) s->salt = index_->salt("", request.cache_salt);
  if (cache_)
    cache_->prefetch(id, std::span(s->tokens).first(size_t(reusable_tokens(*s))), s->salt);
  queue_.insert(s.get());
  seqs_.emplace(id, std::move(s));
  return {};
}

std::optional<TokenEvent> Scheduler::Impl::abort(RequestId id) {
  const auto found = seqs_.find(id);
  if (found == seqs_.end() || found->second->finished()) return std::nullopt;
  SeqState& s = *found->second;
  TokenEvent event = event_of(s);
  finish(s, FinishReason::kAbort, event);
  forget_if_over(s);
  return event;
}

Scheduler::Impl::InFlightStep Scheduler::Impl::pop_step(uint64_t id) {
  ATTUNE_CHECK(!in_flight_.empty() && in_flight_.front().id == id);
  InFlightStep step = std::move(in_flight_.front());
  in_flight_.pop_front();
  return step;
}

std::vector<TokenEvent> Scheduler::Impl::commit(const StepResult& result) {
  InFlightStep step = pop_step(result.id);
  ATTUNE_CHECK(step.rows.size() == result.rows.size());
  end_loads(step, result.load_error.empty());
  std::vector<TokenEvent> events;
  for (size_t i = 0; i < step.rows.size(); ++i)
    settle_row(step.rows[i], result.rows[i], step.id, events);
  return events;
}

std::vector<TokenEvent> Scheduler::Impl::fail_step(uint64_t id, const std::string& error) {
  InFlightStep step = pop_step(id);
  end_loads(step, false);
  RowResult failed;
  failed.error = error.empty() ? "the device failed" : error;
  std::vector<TokenEvent> events;
  for (const InFlightRow& row : step.rows) settle_row(row, failed, step.id, events);
  return events;
}

// What a failed load was for goes back to the queue.
void Scheduler::Impl::end_loads(InFlightStep& step, bool ok) {
  for (Load& load : step.loads) {
    if (ok) {
      index_->finish(std::move(load.transfer), true);
      continue;
    }
    SeqState& s = *seqs_.at(load.request);
    s.failed_loads.push_back(std::move(load.transfer));
    void_rows(s);
  }
}

// What it has computed since is void: nothing of it has been published.
void Scheduler::Impl::void_rows(SeqState& s) {
  if (s.void_until == s.last_step) return;
  s.void_until = s.last_step;
  s.no_loads = true;
  cache_->count_failed_load();
  if (s.seat() != nullptr) retract(s);
}

// A retracted sequence still takes its token: it is as good as any, and re-drawing it would cost a
// step.
void Scheduler::Impl::settle_row(const InFlightRow& row, const RowResult& result, uint64_t step,
                                 std::vector<TokenEvent>& events) {
  SeqState& s = *seqs_.at(row.request);
  row_over(s, row);
  if (!s.finished() && step > s.void_until) {
    TokenEvent event = event_of(s);
    if (!result.error.empty()) {
      event.error = result.error;
      finish(s, FinishReason::kError, event);
    } else {
      advance(s, row, step);
      if (!result.prompt_logprobs.empty()) {
        event.prompt_logprobs = result.prompt_logprobs;
        event.prompt_logprobs_first = result.prompt_logprobs_first;
        const size_t next = size_t(result.prompt_logprobs_first) + result.prompt_logprobs.size();
        s.logprobs_next = next < size_t(s.prompt_tokens) ? static_cast<int32_t>(next) : -1;
      }
      if (row.sample) accept_token(s, result, event);
      // Asked for no token at all: over with the last prompt token.
      const Seat* seat = s.seat();
      if (s.sampling.max_new_tokens == 0 && seat && seat->cached == s.prompt_tokens)
        finish(s, FinishReason::kLength, event);
    }
    if (!event.tokens.empty() || !event.prompt_logprobs.empty() ||
        event.finish != FinishReason::kNone)
      events.push_back(std::move(event));
  }
  forget_if_over(s);
}

void Scheduler::Impl::row_over(SeqState& s, const InFlightRow& row) {
  --s.rows_in_flight;
  s.draws_in_flight -= row.sample;
  if (s.rows_in_flight == 0)
    for (kv::PageTransfer& load : std::exchange(s.failed_loads, {}))
      index_->finish(std::move(load), false);
  if (auto* r = std::get_if<Retracted>(&s.state); r && s.rows_in_flight == 0) release(r->draining);
}

// The KV of the row's tokens is complete now.
void Scheduler::Impl::advance(SeqState& s, const InFlightRow& row, uint64_t step) {
  Seat* seat = s.seat();
  if (seat == nullptr) return;
  seat->cached += row.num_tokens;
  std::erase_if(seat->duplicates, [&](const auto& d) { return d.last_step <= step; });
  publish(s);
  if (auto* p = std::get_if<Prefilling>(&s.state); p && p->seat.cached >= p->target) {
    Seat held = std::move(p->seat);
    s.state = Decoding{std::move(held)};
  }
}

// Gives the index each page that has become full. When it has such a page already (two requests
// computed the same prefix), the sequence goes on with the shared one and drops its own.
void Scheduler::Impl::publish(SeqState& s) {
  if (index_ == nullptr) return;
  Seat& seat = *s.seat();
  const int32_t page_size = pool_.page_size();
  while ((seat.prefix.pages() + 1) * page_size <= seat.cached) {
    const auto i = static_cast<size_t>(seat.prefix.pages());
    const std::span tokens = std::span(s.tokens).subspan(i * size_t(page_size), size_t(page_size));
    if (index_->next_is_loading(seat.prefix, s.salt, tokens)) return;  // later, when it is there
    auto [slot, duplicate] =
        index_->extend(seat.prefix, s.salt, tokens, std::move(seat.own[i]), s.priority);
    seat.slots[i] = slot;
    if (!duplicate || s.rows_in_flight == 0) continue;
    duplicate.drain();
    seat.duplicates.push_back({s.last_step, std::move(duplicate)});
  }
}

void Scheduler::Impl::accept_token(SeqState& s, const RowResult& result, TokenEvent& event) {
  const TokenId token = result.token;
  if (token < 0 || token >= config_.vocab_size) {
    event.error = "the device drew token " + std::to_string(token) + ", outside the vocabulary";
    return finish(s, FinishReason::kError, event);
  }
  const bool may_stop = s.generated() >= s.sampling.min_new_tokens;
  s.tokens.push_back(token);
  ++counters_.generated_tokens;
  event.tokens.push_back(token);
  if (s.sampling.top_logprobs >= 0) event.logprobs.push_back(result.logprob);
  event.usage.completion_tokens = s.generated();
  const bool eos = !s.sampling.ignore_eos && contains(config_.eos_token_ids, token);
  if (may_stop && (eos || contains(s.sampling.stop_token_ids, token))) {
    event.matched = token;
    finish(s, FinishReason::kStop, event);
  } else if (s.generated() >= s.sampling.max_new_tokens) {
    finish(s, FinishReason::kLength, event);
  }
}

TokenEvent Scheduler::Impl::event_of(const SeqState& s) const {
  TokenEvent event;
  event.request = s.id;
  event.usage = {s.prompt_tokens, std::max(s.prompt_cached, 0), s.generated()};
  return event;
}

void Scheduler::Impl::finish(SeqState& s, FinishReason reason, TokenEvent& event) {
  event.finish = reason;
  ++(reason == FinishReason::kAbort   ? counters_.requests_aborted
     : reason == FinishReason::kError ? counters_.requests_failed
                                      : counters_.requests_finished);
  queue_.erase(&s);
  if (cache_) cache_->forget(s.id);
  if (auto* r = std::get_if<Retracted>(&s.state)) {
    std::optional<Seat> draining = std::move(r->draining);
    s.state = Finished{std::move(draining)};
  } else {
    s.state = Finished{leave_device(s)};
  }
}

// Takes the seat out of a running sequence; it comes back empty when no step in flight touches it.
std::optional<Seat> Scheduler::Impl::leave_device(SeqState& s) {
  Seat* held = s.seat();
  if (held == nullptr) return std::nullopt;
  std::erase(running_, &s);
  std::optional<Seat> seat = std::move(*held);
  if (s.rows_in_flight == 0) return std::nullopt;
  for (kv::OwnedPage& page : seat->own)
    if (page) page.drain();
  draining_pages_ += seat->pages() - seat->matched;
  return seat;
}

void Scheduler::Impl::release(std::optional<Seat>& draining) {
  if (!draining) return;
  draining_pages_ -= draining->pages() - draining->matched;
  draining.reset();
}

void Scheduler::Impl::forget_if_over(SeqState& s) {
  auto* finished = std::get_if<Finished>(&s.state);
  if (finished == nullptr || s.rows_in_flight > 0) return;
  release(finished->draining);
  seqs_.erase(s.id);
}

Status Scheduler::Impl::flush_cache() {
  if (has_work())
    return unavailable("the cache is in use: " + std::to_string(running_.size()) +
                       " requests run, " + std::to_string(queue_.size()) + " wait");
  if (cache_ && cache_->holds_pages())
    return unavailable("pages are being copied between the tiers");
  if (index_) index_->clear();
  return {};
}

EngineStats Scheduler::Impl::stats() const {
  EngineStats s = counters_;
  s.running_requests = static_cast<int32_t>(running_.size());
  s.waiting_requests = static_cast<int32_t>(queue_.size());
  s.total_pages = pool_.total();
  s.cached_pages = index_ ? index_->evictable() : 0;
  s.used_pages = pool_.total() - pool_.free() - s.cached_pages;
  s.page_size = pool_.page_size();
  s.steps = steps_;
  s.evicted_pages = index_ ? index_->evicted_total() : 0;
  if (cache_) cache_->count(s.hicache);
  CacheTierStats device{.name = "device"}, host{.name = "host"};
  device.pages = s.total_pages - pool_.free();
  device.total_pages = s.total_pages;
  device.hit_tokens = hit_tokens_[0];
  device.misses = misses_[0];
  device.evicted_pages = s.evicted_pages;
  s.cache_tiers.push_back(std::move(device));
  if (!cache_) return s;
  host.pages = pool_.host_open() - pool_.host_free();
  host.total_pages = pool_.host_total();
  host.hit_tokens = hit_tokens_[1];
  host.misses = misses_[1];
  host.evicted_pages = index_->host_evicted_total();
  s.cache_tiers.push_back(std::move(host));
  if (config_.cache.storage) s.cache_tiers.push_back({.hit_tokens = hit_tokens_[2]});
  return s;
}

}  // namespace attune::sched
