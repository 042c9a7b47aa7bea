// A device for scheduler tests that keeps, in place of keys and values, a hash of everything a
// position's KV depends on: all tokens up to it and the request's cache salt. So a page with the
// wrong content, a page written while somebody else reads it, a token computed twice or not at all
// are seen at once. Its draws depend on (seed, position, context) only, so that what a request must
// answer is known without any scheduler (expected_output).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sched/scheduler.h"
#include "sched/step_plan.h"

namespace attune::sched::testing {

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15 + b + 0x632be59bd9b4e019;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}
inline uint64_t salt_hash(const std::string& salt) {
  uint64_t h = 1;
  for (const char c : salt) h = mix(h, static_cast<uint8_t>(c));
  return h;
}

inline bool stops(const SchedulerConfig& c, const SamplingParams& p, TokenId t) {
  const auto in = [t](const std::vector<TokenId>& v) { return std::ranges::count(v, t) > 0; };
  return (!p.ignore_eos && in(c.eos_token_ids)) || in(p.stop_token_ids);
}

// The draw at `generated` tokens behind the prompt, given the hash of the context.
inline TokenId draw(const SchedulerConfig& c, const SamplingParams& p, uint64_t context,
                    int32_t position, int32_t generated) {
  auto t =
      static_cast<TokenId>(mix(mix(context, *p.seed), uint64_t(position)) % uint64_t(c.vocab_size));
  while (generated < p.min_new_tokens && stops(c, p, t)) t = (t + 1) % c.vocab_size;
  return t;
}

struct Answer {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kLength;
};

// What `request` must get when `limit` tokens (prompt and output) is the most there may be.
inline Answer expected_output(const SchedulerConfig& c, const Request& request, int32_t limit) {
  Answer answer;
  const SamplingParams& p = request.sampling;
  uint64_t h = salt_hash(request.cache_salt);
  for (const TokenId t : request.prompt) h = mix(h, uint64_t(t));
  const auto prompt = static_cast<int32_t>(request.prompt.size());
  const int32_t most = std::min(p.max_new_tokens, limit - prompt);
  for (int32_t i = 0; i < most; ++i) {
    const TokenId t = draw(c, p, h, prompt + i, i);
    answer.tokens.push_back(t);
    h = mix(h, uint64_t(t));
    if (i >= p.min_new_tokens && stops(c, p, t)) {
      answer.finish = FinishReason::kStop;
      break;
    }
  }
  return answer;
}

class FakeDevice {
 public:
  using Content = std::vector<uint64_t>;  // of a page, by token

  FakeDevice(const SchedulerConfig& config, const kv::PagePool& pool)
      : config_(config),
        pool_(pool),
        kv_(size_t(pool.total()) + 1, Content(size_t(pool.page_size()), 0)),
        host_(size_t(pool.host_total()), Content(size_t(pool.page_size()), 0)) {}

  Content& page(kv::DeviceSlot slot) { return kv_.at(size_t(slot.value)); }
  Content& page(kv::HostSlot slot) { return host_.at(size_t(slot.value)); }
  // The loads of the next plans do not come, and what is in their pages is anything.
  void fail_loads(bool fail) { fail_loads_ = fail; }

  // Tell it of each request before its first plan.
  void expect(RequestId id, const std::string& cache_salt) { salts_[id] = salt_hash(cache_salt); }

  // Runs the plan at once (the device is in order) and keeps the result. False: see error().
  bool launch(const StepPlan& plan) {
    if (plan.id != last_id_ + 1) fail("ids do not count up");
    last_id_ = plan.id;
    if (int32_t(plan.rows.size()) > config_.max_step_rows() ||
        plan.num_tokens > config_.max_step_tokens())
      fail("plan larger than announced");
    for (const Admission& a : plan.admissions) admit(a);
    Step step;
    step.result.id = plan.id;
    load(plan, step.result);
    int32_t tokens = 0;
    bool decode_seen = false;
    std::set<RequestId> seen;
    for (const StepRow& row : plan.rows) {
      row_ = "step " + std::to_string(plan.id) + " request " + std::to_string(row.request) + ": ";
      if (!seen.insert(row.request).second) fail("two rows of one request");
      if (row.kind == RowKind::kPrefill && decode_seen) fail("a prefill row behind a decode row");
      decode_seen |= row.kind == RowKind::kDecode;
      tokens += row.num_tokens;
      step.uses.push_back({row.request, row.place, row.pages});
      check_writes(row);
      step.result.rows.push_back(run(row));
      if (!error_.empty()) return false;
    }
    if (tokens != plan.num_tokens) fail("num_tokens is not the sum of the rows'");
    computed_ += uint64_t(tokens);
    in_flight_.push_back(std::move(step));
    return error_.empty();
  }
  StepResult take_result() {
    StepResult r = std::move(in_flight_.front().result);
    in_flight_.pop_front();
    return r;
  }
  const std::string& error() const { return error_; }
  uint64_t computed_tokens() const { return computed_; }

 private:
  struct Place {
    RequestId request = 0;
    SamplingParams sampling;
    std::vector<TokenId> tokens;
    int32_t prompt_tokens = 0;
    int32_t computed = -1;  // -1: no row yet
  };
  struct Use {
    RequestId request;
    SeqPlace place;
    std::vector<kv::DeviceSlot> pages;
  };
  struct Step {
    StepResult result;
    std::vector<Use> uses;
  };

  void fail(const std::string& what) {
    if (error_.empty()) error_ = row_ + what;
  }

  void admit(const Admission& a) {
    row_ = "admission of " + std::to_string(a.request) + ": ";
    if (a.place.value < 0 || a.place.value >= config_.max_running_requests) fail("bad place");
    for (const Step& step : in_flight_)
      for (const Use& use : step.uses)
        if (use.place == a.place) fail("the place is in use by a step in flight");
    if (!a.sampling.seed) fail("no seed");
    places_[a.place.value] = {a.request, a.sampling, a.history, a.prompt_tokens, -1};
  }

  void load(const StepPlan& plan, StepResult& result) {
    row_ = "load of step " + std::to_string(plan.id) + ": ";
    for (const kv::PageCopy& copy : plan.loads) {
      for (const Step& step : in_flight_)
        for (const Use& use : step.uses)
          if (std::ranges::count(use.pages, copy.device) > 0)
            fail("into a page that a step in flight uses");
      page(copy.device) = page(copy.host);
      garbage_.erase(copy.device);
      if (!fail_loads_) continue;
      garbage_.insert(copy.device);
      result.load_error = "the link is down";
    }
  }

  // Pages that this row writes may be in no row of another request of a step in flight. (A write to
  // a page that another one reads later shows in its content.)
  void check_writes(const StepRow& row) {
    const auto page_size = pool_.page_size();
    if (int32_t(row.pages.size()) != pool_.pages_for(row.start + row.num_tokens))
      return fail("wrong number of pages");
    std::set<kv::DeviceSlot> all(row.pages.begin(), row.pages.end());
    if (all.size() != row.pages.size()) fail("a page twice");
    if (all.begin()->value < 1 || all.rbegin()->value > pool_.total()) fail("a slot out of range");
    const std::set<kv::DeviceSlot> written(row.pages.begin() + row.start / page_size,
                                           row.pages.end());
    const auto touches = [&](const std::vector<kv::DeviceSlot>& pages) {
      return std::ranges::any_of(pages, [&](kv::DeviceSlot s) { return written.contains(s); });
    };
    for (const Step& step : in_flight_)
      for (const Use& use : step.uses)
        if (use.request != row.request && touches(use.pages))
          fail("writes a page that a step in flight uses for " + std::to_string(use.request));
  }

  RowResult run(const StepRow& row) {
    RowResult result;
    Place& p = places_[row.place.value];
    if (p.request != row.request) fail("the place belongs to another request");
    if (p.computed < 0) {
      if (row.start % pool_.page_size() != 0) fail("a prefix hit that is no whole page");
      p.computed = row.start;
    }
    if (row.start != p.computed) fail("tokens skipped or computed twice");
    const auto end = row.start + row.num_tokens;
    if (row.num_tokens < 1 || end > int32_t(p.tokens.size())) fail("more tokens than there are");
    if (!error_.empty()) return result;
    if (row.kind == RowKind::kPrefill) {
      if (!std::ranges::equal(
              row.tokens, std::span(p.tokens).subspan(size_t(row.start), size_t(row.num_tokens))))
        fail("wrong tokens");
    } else if (end != int32_t(p.tokens.size()) || row.num_tokens != 1 || !row.tokens.empty()) {
      fail("a decode row that is not of the last token");
    }
    const uint64_t h = attend_and_write(row, p);
    p.computed = end;
    const int32_t generated = int32_t(p.tokens.size()) - p.prompt_tokens;
    if (row.sample != (end == int32_t(p.tokens.size()) && generated < p.sampling.max_new_tokens))
      fail("draws at the wrong place");
    if (row.kind == RowKind::kPrefill) prompt_logprobs(row, p, result);
    if (row.sample) {
      result.token = draw(config_, p.sampling, h, end, generated);
      result.logprob.chosen = {result.token, -1.0f};
      p.tokens.push_back(result.token);
    }
    return result;
  }

  // Reads [0, start), writes [start, start + num_tokens); the hash of the context after that.
  uint64_t attend_and_write(const StepRow& row, const Place& p) {
    const auto page_size = size_t(pool_.page_size());
    uint64_t h = salts_.at(row.request);
    // What reads a page that did not come makes garbage of what it writes.
    const bool spoilt = std::ranges::any_of(
        std::span(row.pages).first(size_t(row.start) / page_size + (row.start % page_size != 0)),
        [&](kv::DeviceSlot slot) { return garbage_.contains(slot); });
    if (spoilt) h = mix(h, 99);
    for (size_t i = 0; i < size_t(row.start + row.num_tokens); ++i) {
      h = mix(h, uint64_t(p.tokens[i]));
      uint64_t& cell = kv_[size_t(row.pages[i / page_size].value)][i % page_size];
      if (i >= size_t(row.start)) {
        cell = h;
        spoilt ? void(garbage_.insert(row.pages[i / page_size]))
               : void(garbage_.erase(row.pages[i / page_size]));
      } else if (cell != h && !spoilt) {
        fail("wrong content at position " + std::to_string(i));
      }
    }
    return h;
  }

  void prompt_logprobs(const StepRow& row, const Place& p, RowResult& result) {
    const auto end = row.start + row.num_tokens;
    if (row.next_token != (end < p.prompt_tokens ? p.tokens[size_t(end)] : -1))
      fail("wrong next_token");
    if (row.prompt_logprob_start < 0) return;
    result.prompt_logprobs_first = std::max(row.prompt_logprob_start, row.start + 1);
    for (int32_t i = result.prompt_logprobs_first; i < std::min(end + 1, p.prompt_tokens); ++i)
      result.prompt_logprobs.push_back({{p.tokens[size_t(i)], float(-i)}, {}});
  }

  SchedulerConfig config_;
  const kv::PagePool& pool_;
  std::vector<Content> kv_, host_;  // [slot]
  std::set<kv::DeviceSlot> garbage_;
  bool fail_loads_ = false;
  std::map<int32_t, Place> places_;
  std::map<RequestId, uint64_t> salts_;
  std::deque<Step> in_flight_;
  uint64_t last_id_ = 0, computed_ = 0;
  std::string row_, error_;
};

}  // namespace attune::sched::testing
