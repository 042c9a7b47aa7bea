#include "server/completion.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/guard.h"
#include "base/log.h"

namespace attune::server {

EventQueue::EventQueue(std::function<void()> wake) : shared_(std::make_shared<Shared>()) {
  shared_->wake = std::move(wake);
}

EventQueue::~EventQueue() {
  const std::lock_guard lock(shared_->mutex);
  shared_->open = false;
  shared_->items.clear();
}

void EventQueue::Shared::push(Item item) {
  const std::lock_guard lock(mutex);
  if (!open) return;
  items.push_back(std::move(item));
  if (items.size() > 1) return;
  arrived.notify_one();
  if (wake) wake();
}

void EventQueue::pump() {
  std::vector<Item> items;
  {
    const std::lock_guard lock(shared_->mutex);
    items.swap(shared_->items);
  }
  for (auto& item : items) {
    auto owner = item.owner.lock();
    if (!owner) continue;
    const Status status =
        base::guarded([&] { owner->deliver(item.choice, std::move(item.event)); });
    if (!status.ok()) owner->break_off(item.choice, status.message());
  }
}

bool EventQueue::wait_and_pump(double seconds) {
  {
    std::unique_lock lock(shared_->mutex);
    if (!shared_->arrived.wait_for(lock, std::chrono::duration<double>(seconds),
                                   [this] { return !shared_->items.empty(); })) {
      return false;
    }
  }
  pump();
  return true;
}

void ChoiceDelta::append(ChoiceDelta later) {
  const auto move_all = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  text += later.text;
  move_all(tokens, later.tokens);
  move_all(logprobs, later.logprobs);
  move_all(offsets, later.offsets);
  if (prompt_logprobs.empty()) prompt_logprobs_first = later.prompt_logprobs_first;
  move_all(prompt_logprobs, later.prompt_logprobs);
  usage = later.usage;
  finish = later.finish;
  matched_token = later.matched_token;
  matched_stop = std::move(later.matched_stop);
  error = std::move(later.error);
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// Lives as long as the engine wants to talk; the completion may be gone by then.
class Completion::Sink : public TokenSink {
 public:
  Sink(std::shared_ptr<EventQueue::Shared> queue, std::weak_ptr<Completion> owner, int32_t choice)
      : queue_(std::move(queue)), owner_(std::move(owner)), choice_(choice) {}
  void on_event(TokenEvent event) override { queue_->push({owner_, choice_, std::move(event)}); }

 private:
  std::shared_ptr<EventQueue::Shared> queue_;
  std::weak_ptr<Completion> owner_;
  int32_t choice_;
};

std::string prompt_name(size_t i, size_t prompts) {
  return prompts == 1 ? "the prompt" : "prompt " + std::to_string(i);
}

std::string prompt_objection(const std::string& which, size_t tokens, int32_t token_limit,
                             bool counted) {
  if (tokens == 0) return which + " is empty: it has no token";
  if (tokens < static_cast<size_t>(token_limit)) return "";
  return which + " has " + (counted ? "" : "more than ") + std::to_string(tokens) +
         " tokens, which leaves no room for output: both together may have at most " +
         std::to_string(token_limit) + "; shorten the prompt";
}

Result<std::shared_ptr<Completion>> Completion::start(Engine& engine,
                                                      const text::Tokenizer& tokenizer,
                                                      CompletionSpec spec, EventQueue& queue,
                                                      OnDelta on_delta) {
  for (size_t i = 0; i < spec.prompts.size(); ++i) {
    const std::string why = prompt_objection(prompt_name(i, spec.prompts.size()),
                                             spec.prompts[i].ids.size(), spec.token_limit);
    if (!why.empty()) return invalid_argument(why);
  }
  std::shared_ptr<Completion> completion(new Completion(engine, std::move(on_delta)));
  ATTUNE_RETURN_IF_ERROR(completion->submit(spec, tokenizer, queue));
  return completion;
}

Status Completion::submit(const CompletionSpec& spec, const text::Tokenizer& tokenizer,
                          EventQueue& queue) {
  choices_.reserve(spec.prompts.size() * static_cast<size_t>(spec.n));
  for (const PromptSpec& prompt : spec.prompts) {
    Request request;
    request.prompt = prompt.ids;
    request.sampling = prompt.sampling;
    request.priority = spec.priority;
    request.cache_salt = spec.cache_salt;
    request.label = spec.label;
    const bool score_only = prompt.sampling.max_new_tokens == 0;
    SamplingParams& sampling = request.sampling;
    sampling.max_new_tokens = std::clamp(
        sampling.max_new_tokens, 1, spec.token_limit - static_cast<int32_t>(prompt.ids.size()));
    sampling.min_new_tokens = std::min(sampling.min_new_tokens, sampling.max_new_tokens);
    const text::TextStreamOptions options{
        {prompt.skip_special_tokens, false}, prompt.stop, prompt.no_stop_trim};
    for (int32_t sample = 0; sample < spec.n; ++sample) {
      Request copy = request;
      if (copy.sampling.seed) *copy.sampling.seed += static_cast<uint64_t>(sample);
      choices_.push_back({text::TextStream(tokenizer, options)});
      Choice& choice = choices_.back();
      choice.score_only = score_only;
      choice.keep_stop = prompt.no_stop_trim;
      ++running_;
      auto sink = std::make_shared<Sink>(queue.shared_, weak_from_this(), choices() - 1);
      auto id = engine_.submit(std::move(copy), std::move(sink));
      if (!id.ok()) return id.status();
      choice.request = *id;
      choice.submitted = true;
    }
  }
  return {};
}

Completion::~Completion() {
  abort();
}

void Completion::abort() {
  for (Choice& choice : choices_) {
    if (choice.submitted && !choice.done) engine_.abort(choice.request);
    choice.done = true;
  }
  running_ = 0;
}

void Completion::deliver(int32_t index, TokenEvent event) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (choice.done) return;
  ChoiceDelta delta;
  delta.choice = index;
  delta.prompt_logprobs = std::move(event.prompt_logprobs);
  delta.prompt_logprobs_first = event.prompt_logprobs_first;
  delta.usage = event.usage;
  delta.finish = event.finish;
  if (choice.score_only) {
    delta.usage.completion_tokens = 0;
    if (event.finish == FinishReason::kStop) delta.finish = FinishReason::kLength;
  } else {
    add_text(choice, event, delta);
  }
  if (event.finish == FinishReason::kError || event.finish == FinishReason::kAbort) {
    delta.error = std::move(event.error);
  }
  if (delta.finish != FinishReason::kNone) {
    choice.done = true;
    --running_;
  }
  const auto keep_alive = shared_from_this();
  on_delta_(std::move(delta));
}

// The choice's state is not to be trusted any more.
void Completion::break_off(int32_t index, const std::string& why) {
  base::log_error("an answer's delivery failed: ", why);
  Choice& choice = choices_[static_cast<size_t>(index)];
  const Status status = base::guarded([&] {
    if (!choice.done) --running_;
    choice.done = true;
    engine_.abort(choice.request);
    on_delta_({.choice = index, .finish = FinishReason::kError, .error = why});
  });
  if (!status.ok()) base::log_error("... and so did telling of it: ", status.message());
}

void Completion::add_text(Choice& choice, TokenEvent& event, ChoiceDelta& delta) {
  const bool ended_by_token = event.finish == FinishReason::kStop && event.matched &&
                              !event.tokens.empty() && event.tokens.back() == *event.matched;
  const bool trim = ended_by_token && !choice.keep_stop;
  auto text = choice.text.push(std::span(event.tokens).first(event.tokens.size() - (trim ? 1 : 0)));
  delta.text = std::move(text.text);
  delta.tokens = std::move(event.tokens);
  delta.logprobs = std::move(event.logprobs);
  delta.offsets = std::move(text.offsets);
  if (text.stopped) {
    // The engine knows nothing of stop strings, and may have gone on.
    delta.tokens.resize(text.tokens_used);
    delta.logprobs.resize(std::min(delta.logprobs.size(), text.tokens_used));
    delta.usage.completion_tokens = static_cast<int32_t>(choice.text.tokens());
    delta.finish = FinishReason::kStop;
    delta.matched_stop = choice.text.stop_string();
    if (event.finish == FinishReason::kNone) engine_.abort(choice.request);
  } else if (event.finish != FinishReason::kNone) {
    finish_text(choice, event, delta);
  }
  choice.characters += count_characters(delta.text);
  // A token that is not part of the text begins where the text ends.
  delta.offsets.resize(delta.tokens.size(), choice.characters);
}

void Completion::finish_text(Choice& choice, const TokenEvent& event, ChoiceDelta& delta) {
  auto tail = choice.text.finish();
  delta.text += tail.text;
  if (tail.stopped) {
    delta.finish = FinishReason::kStop;
    delta.matched_stop = choice.text.stop_string();
  } else if (event.finish == FinishReason::kStop) {
    delta.matched_token = event.matched;
  }
}

}  // namespace attune::server
