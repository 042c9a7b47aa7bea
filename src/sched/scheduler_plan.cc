// How a step is planned: decode rows first (they need a page at most), then prompts that are under
// way, then new requests, all on the speculated state.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace attune::sched {
namespace {

constexpr size_t kLookahead = 128;     // requests of the queue looked at in one plan
constexpr int32_t kMostPeeked = 4096;  // pages of them looked up in one plan, about
constexpr uint64_t kPatience = 256;    // plans that a request may be passed over by luckier ones
constexpr int32_t kWorthWaiting = 32;  // tokens that another request is about to compute as well

// Who goes on when memory runs out. The first in this order is never retracted and grows, so
// somebody always gets to an end.
bool goes_before(const SeqState* a, const SeqState* b) {
  const auto key = [](const SeqState* s) {
    return std::tuple(-int64_t{s->priority}, -(s->generated() + s->draws_in_flight), s->arrival);
  };
  return key(a) < key(b);
}

}  // namespace

StepPlan Scheduler::Impl::plan() {
  StepPlan plan;
  if (steps_in_flight() >= config_.max_steps_in_flight) return plan;
  ++plans_;
  const uint64_t retractions = counters_.retractions;
  make_room_for_decode();
  std::vector<StepRow> decode = decode_rows();
  int32_t budget = prefill_budget(decode.size());
  continue_prefills(plan, budget);
  if (counters_.retractions == retractions) {
    admit(plan, budget);
    if (!decode.empty()) guess_.on_step();
  }
  std::ranges::move(decode, std::back_inserter(plan.rows));
  if (!plan.empty()) launch(plan);
  return plan;
}

void Scheduler::Impl::launch(StepPlan& plan) {
  plan.id = ++steps_;
  InFlightStep step{plan.id, {}};
  for (const StepRow& row : plan.rows) {
    plan.num_tokens += row.num_tokens;
    step.rows.push_back({row.request, row.num_tokens, row.sample});
  }
  step.loads = std::exchange(loads_, {});
  in_flight_.push_back(std::move(step));
}

// ---- decode ------------------------------------------------------------------------------------

// In the speculated state: its prompt is through and it has tokens to come.
bool Scheduler::Impl::wants_decode(const SeqState& s) const {
  const auto* p = std::get_if<Prefilling>(&s.state);
  return (p == nullptr || p->seat.planned >= p->target) && s.planned_remaining() > 0;
}

bool Scheduler::Impl::needs_page(const SeqState& s) const {
  const Seat& seat = *s.seat();
  return wants_decode(s) && seat.planned == seat.pages() * pool_.page_size();
}

// Retracts until every sequence that goes on can have the page it needs, now or when the steps in
// flight have been committed. The last one is never retracted: add() saw to it that it fits alone.
void Scheduler::Impl::make_room_for_decode() {
  auto needed = std::ranges::count_if(running_, [&](SeqState* s) { return needs_page(*s); });
  bool retracted = false;
  while (needed > available() + draining_pages_ && running_.size() > 1) {
    SeqState* victim = *std::ranges::max_element(running_, goes_before);
    needed -= needs_page(*victim);
    retract(*victim);
    retracted = true;
  }
  if (!retracted) return;
  int64_t generated = 0, allowed = 0;
  for (const SeqState* s : running_) {
    generated += s->generated();
    allowed += s->sampling.max_new_tokens;
  }
  guess_.on_retraction(generated, allowed, static_cast<int32_t>(running_.size()));
}

void Scheduler::Impl::retract(SeqState& s) {
  s.state = Retracted{leave_device(s)};
  s.waiting_since = plans_;
  queue_.insert(&s);
  ++counters_.retractions;
}

std::vector<StepRow> Scheduler::Impl::decode_rows() {
  std::vector<StepRow> rows;
  for (SeqState* s : running_) {
    if (!wants_decode(*s)) continue;
    Seat& seat = *s->seat();
    if (needs_page(*s)) {
      if (available() == 0) continue;  // its page comes back with a step in flight
      seat.own.push_back(take_page());
      seat.slots.push_back(seat.own.back().slot());
    }
    ATTUNE_CHECK(seat.planned == s->planned_length() - 1);
    StepRow& row = rows.emplace_back();
    row.request = s->id;
    row.place = seat.place.get();
    row.kind = RowKind::kDecode;
    row.start = seat.planned;
    row.pages = seat.slots;
    begin_row(*s, row);
  }
  return rows;
}

// REQUIRES: available() > 0
kv::OwnedPage Scheduler::Impl::take_page() {
  if (pool_.free() == 0) index_->evict(1);
  return pool_.reserve(1)->take();
}

void Scheduler::Impl::begin_row(SeqState& s, const StepRow& row) {
  s.seat()->planned += row.num_tokens;
  ++s.rows_in_flight;
  s.draws_in_flight += row.sample;
  s.last_step = steps_ + 1;
}

// ---- prefill -----------------------------------------------------------------------------------

// Decode rows count against the chunk, so that a step's time stays even; but however many there
// are, a quarter of it is left to prompts.
int32_t Scheduler::Impl::prefill_budget(size_t decode_rows) const {
  const int32_t chunk = config_.chunked_prefill_size;
  if (chunk < 0) return config_.max_prefill_tokens;
  const int32_t left = std::max(chunk - static_cast<int32_t>(decode_rows), std::max(1, chunk / 4));
  return std::min(left, config_.max_prefill_tokens);
}

void Scheduler::Impl::continue_prefills(StepPlan& plan, int32_t& budget) {
  for (SeqState* s : running_) {
    const auto* p = std::get_if<Prefilling>(&s->state);
    if (p == nullptr || p->seat.planned >= p->target || budget <= 0) continue;
    const int32_t n = std::min(p->target - p->seat.planned, budget);
    plan.rows.push_back(prefill_row(*s, n));
    budget -= n;
  }
}

StepRow Scheduler::Impl::prefill_row(SeqState& s, int32_t num_tokens) {
  const auto& p = std::get<Prefilling>(s.state);
  StepRow row;
  row.request = s.id;
  row.place = p.seat.place.get();
  row.kind = RowKind::kPrefill;
  row.start = p.seat.planned;
  row.num_tokens = num_tokens;
  const int32_t end = row.start + num_tokens;
  row.tokens.assign(s.tokens.begin() + row.start, s.tokens.begin() + end);
  row.pages.assign(p.seat.slots.begin(), p.seat.slots.begin() + pool_.pages_for(end));
  row.sample = end == p.target && s.planned_remaining() > 0;
  row.prompt_logprob_start = s.logprobs_next;
  if (end < s.prompt_tokens) row.next_token = s.tokens[static_cast<size_t>(end)];
  begin_row(s, row);
  return row;
}

// ---- admission ---------------------------------------------------------------------------------

// In order, and nobody is skipped for want of memory: else small requests would starve a large one.
void Scheduler::Impl::admit(StepPlan& plan, int32_t budget) {
  if (queue_.empty() || free_places_.empty() || budget <= 0) return;
  PageForecast forecast(pool_.page_size());
  for (const SeqState* s : running_) forecast.add(need_of(*s, 0));
  for (SeqState* s : candidates()) {
    if (free_places_.empty() || budget <= 0) return;
    if (s->rows_in_flight > 0) return;  // just retracted; its last token is still to come
    if (index_ && waits_for_mate(*s)) continue;
    if (cache_ && !cache_->may_admit(s->id)) continue;
    if (try_admit(*s, plan, budget, forecast) == Admitted::kNoRoom) return;
  }
}

// The first of the queue in the policy's order. With kLpm the longest cached prefix goes first, but
// those whose patience is over keep their turn.
std::vector<SeqState*> Scheduler::Impl::candidates() {
  std::vector<SeqState*> list;
  for (SeqState* s : queue_) {
    if (list.size() == kLookahead) break;
    list.push_back(s);
  }
  if (config_.policy != Policy::kLpm || index_ == nullptr) return list;
  peek(list);
  std::ranges::stable_sort(list, {}, [&](const SeqState* s) {
    const bool patient = plans_ - s->waiting_since < kPatience;
    return std::tuple(-int64_t{s->priority}, patient, patient ? -s->peeked : 0);
  });
  return list;
}

// The index changes with every step, and long prompts are long walks: a few each time, those first
// whose count is the oldest.
void Scheduler::Impl::peek(std::vector<SeqState*> requests) {
  std::ranges::stable_sort(requests, {}, &SeqState::peeked_version);
  int32_t pages = 0;
  for (SeqState* s : requests) {
    if (pages >= kMostPeeked || s->peeked_version == index_->version()) return;
    s->peeked = index_->peek(std::span(s->tokens).first(size_t(reusable_tokens(*s))), s->salt);
    s->peeked_version = index_->version();
    pages += s->peeked / pool_.page_size() + 1;
  }
}

// Tokens at the front that need not be computed: the last one gives the first draw, and each prompt
// position whose log-probability is wanted needs the logits before it.
int32_t Scheduler::Impl::reusable_tokens(const SeqState& s) const {
  const int32_t wanted = s.logprobs_next >= 0 ? s.logprobs_next - 1 : s.length();
  return std::min(s.length() - 1, wanted);
}

// Whether a running request is about to compute a good part of the prompt that this one needs too
// and that the index has not got yet (`n` choices, a shared system prompt): then waiting is
// cheaper.
bool Scheduler::Impl::waits_for_mate(SeqState& s) {
  const auto published = [&](const SeqState& mate) {
    return mate.seat()->prefix.pages() * pool_.page_size();
  };
  if (s.mate_tokens > 0) {
    const auto mate = seqs_.find(s.mate);
    if (mate != seqs_.end() && std::holds_alternative<Prefilling>(mate->second->state) &&
        published(*mate->second) < s.mate_tokens)
      return true;
    s.mate_tokens = 0;
  }
  const std::span mine = std::span(s.tokens).first(size_t(reusable_tokens(s)));
  for (const SeqState* other : running_) {
    const auto* p = std::get_if<Prefilling>(&other->state);
    if (p == nullptr || other->salt != s.salt) continue;
    const std::span theirs = std::span(other->tokens).first(size_t(p->target));
    const auto differ = std::ranges::mismatch(mine, theirs).in1;
    const auto common = static_cast<int32_t>(differ - mine.begin());
    const int32_t shared = common - common % pool_.page_size();
    if (shared - published(*other) < kWorthWaiting) continue;
    if (shared - index_->peek(mine, s.salt) < kWorthWaiting) continue;
    s.mate = other->id;
    s.mate_tokens = shared;
    return true;
  }
  return false;
}

PageNeed Scheduler::Impl::need_of(const SeqState& s, int32_t now) const {
  const Seat* seat = s.seat();
  return {guess_.tokens(std::max(s.planned_remaining(), 0)), now,
          seat ? seat->pages() - seat->matched : 0};
}

// Gives it a seat with pages for its whole prompt, and its first row. What lies in the host is
// loaded with that step.
Scheduler::Impl::Admitted Scheduler::Impl::try_admit(SeqState& s, StepPlan& plan, int32_t& budget,
                                                     PageForecast& forecast) {
  Seat seat;
  int32_t in_host = 0, loads = 0;
  if (index_) {
    auto found = index_->match(std::span(s.tokens).first(size_t(reusable_tokens(s))), s.salt);
    if (found.loading) return Admitted::kLater;  // with the step that loads it for another
    seat.prefix = std::move(found.pin);
    seat.slots = std::move(found.slots);
    in_host = found.host_pages;
  }
  if (cache_ && !s.no_loads && cache_->worth_loading(in_host)) loads = in_host;
  seat.matched = seat.pages() + loads;
  seat.cached = seat.planned = seat.matched * pool_.page_size();
  const int32_t todo = s.length() - seat.planned;
  const bool whole = config_.chunked_prefill_size < 0;
  if (whole && todo > budget && !plan.rows.empty()) return Admitted::kNoRoom;

  const int32_t pages = pool_.pages_for(s.length()) - seat.pages();
  const PageNeed need = need_of(s, pages);
  if (pages > available()) return Admitted::kNoRoom;
  if (!running_.empty() && forecast.peak_with(need) > available()) return Admitted::kNoRoom;

  if (cache_ && !cache_->may_take(pages)) return Admitted::kNoRoom;

  if (cache_) cache_->cut_prefetch(s.id);
  if (index_)
    index_->use(std::span(s.tokens).first(size_t(reusable_tokens(s))), s.salt, s.priority);
  if (pages > pool_.free()) index_->evict(pages - pool_.free());
  kv::PageReservation reservation = *pool_.reserve(pages);
  if (loads > 0) load_pages(s, seat, loads, reservation, plan);
  if (cache_) cache_->count_load(in_host, loads > 0);
  seat.own.resize(seat.slots.size());
  while (reservation.size() > 0) {
    seat.own.push_back(reservation.take());
    seat.slots.push_back(seat.own.back().slot());
  }
  seat.place = PlaceLease(&free_places_);
  forecast.add({need.tokens, 0, pages - loads});

  count_hits(s, seat, loads);
  plan.admissions.push_back({s.id, seat.place.get(), s.sampling, s.tokens, s.prompt_tokens});
  queue_.erase(&s);
  s.state = Prefilling{std::move(seat), s.length()};
  running_.push_back(&s);
  const int32_t n = whole ? todo : std::min(todo, budget);
  plan.rows.push_back(prefill_row(s, n));
  budget -= n;
  return Admitted::kYes;
}

void Scheduler::Impl::load_pages(SeqState& s, Seat& seat, int32_t pages, kv::PageReservation& fresh,
                                 StepPlan& plan) {
  for (kv::PageTransfer& load : index_->load(seat.prefix, s.salt, s.tokens, pages, fresh)) {
    seat.slots.push_back(load.slot());
    plan.loads.push_back({load.host_slot(), load.slot()});
    loads_.push_back({s.id, std::move(load)});
  }
}

void Scheduler::Impl::count_hits(SeqState& s, const Seat& seat, int32_t loaded) {
  if (s.prompt_cached >= 0) return;  // it was retracted, and its first time counts
  s.prompt_cached = std::min(seat.cached, s.prompt_tokens);
  counters_.prompt_tokens += uint64_t(s.prompt_tokens);
  counters_.cached_tokens += uint64_t(s.prompt_cached);
  const int32_t fetched = cache_ ? std::min(cache_->fetched_pages(s.id), loaded) : 0;
  const auto tokens = [&](int32_t pages) { return uint64_t(pages) * uint64_t(pool_.page_size()); };
  // A lookup that ends in a tier goes on below it.
  const int32_t wanted = reusable_tokens(s) / pool_.page_size();
  misses_[0] += seat.matched - loaded < wanted;
  misses_[1] += cache_ && seat.matched < wanted;
  hit_tokens_[0] += tokens(seat.matched - loaded);
  hit_tokens_[1] += tokens(loaded - fetched);
  hit_tokens_[2] += tokens(fetched);
}

}  // namespace attune::sched
