#include "server/generation_session.h"

#include "base/guard.h"
#include "base/log.h"

namespace attune::server {

namespace {

// Bodies from this size on are parsed and tokenized on the worker, so that others need not wait.
constexpr size_t kLongBody = 64 << 10;

struct Parsed {
  Prepared prepared;
  std::optional<ApiError> error;
};

Parsed parse(const Model& model, int32_t token_limit, Form form, const std::string& body) {
  Parsed parsed;
  const Status status = base::guarded([&] {
    GenerationRequest request;
    parsed.error = parse_generation(form, body, request);
    if (!parsed.error) {
      parsed.error = prepare(model, token_limit, std::move(request), parsed.prepared);
    }
  });
  if (!status.ok()) parsed.error = to_api_error(status);
  return parsed;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ApiError time_limit_error(double limit) {
  return {408,
          "the answer was not complete within the " + std::to_string(limit) +
              " seconds that the server allows a request",
          "", "timeout"};
}

}  // namespace

void GenerationSession::start(Context& context, Form form, HttpRequest request,
                              std::shared_ptr<Exchange> exchange) {
  auto session = std::make_shared<GenerationSession>(context, std::move(exchange), request.arrival);
  session->exchange_->on_close([session] {
    ++session->context_.metrics.aborted;
    session->log_end("the client left");
    session->release();
  });
  const auto go_on = [](const std::shared_ptr<GenerationSession>& s, Parsed parsed) {
    if (s->over_) return;
    if (parsed.error) return s->fail(*parsed.error);
    const Status status = base::guarded([&] { s->begin(std::move(parsed.prepared)); });
    if (!status.ok()) s->fail(to_api_error(status));
  };
  if (request.body.size() < kLongBody) {
    return go_on(session, parse(context.model, context.token_limit, form, request.body));
  }
  auto parsed = std::make_shared<Parsed>();
  context.worker->post([parsed, form, body = std::move(request.body), model = context.model,
                        limit = context.token_limit] { *parsed = parse(model, limit, form, body); },
                       [session = std::move(session), parsed, go_on](const Status& worked) {
                         if (!worked.ok()) parsed->error = to_api_error(worked);
                         go_on(session, std::move(*parsed));
                       });
}

GenerationSession::GenerationSession(Context& context, std::shared_ptr<Exchange> exchange,
                                     Clock::time_point arrival)
    : context_(context), exchange_(std::move(exchange)), arrival_(arrival) {}

GenerationSession::~GenerationSession() = default;

void GenerationSession::begin(Prepared prepared) {
  prepared_ = std::move(prepared);
  ++context_.metrics.requests;
  answer_ = make_answer();
  prepared_.spec.label = id_;
  choices_.resize(prepared_.spec.prompts.size() * static_cast<size_t>(prepared_.spec.n));
  auto completion = Completion::start(*context_.model.engine, *context_.model.tokenizer,
                                      std::move(prepared_.spec), *context_.events,
                                      [weak = weak_from_this()](ChoiceDelta delta) {
                                        if (auto self = weak.lock())
                                          self->on_delta(std::move(delta));
                                      });
  if (!completion.ok()) return fail(to_api_error(completion.status()));
  completion_ = std::move(*completion);
  if (const double limit = context_.options.request_timeout; limit > 0) {
    timeout_ =
        context_.loop->after(limit - seconds_since(arrival_), [weak = weak_from_this(), limit] {
          auto self = weak.lock();
          if (!self || self->over_) return;
          self->fail(time_limit_error(limit), &Metrics::aborted);
        });
  }
  if (!prepared_.request.stream) return;
  exchange_->on_drain([self = shared_from_this()] { self->flush(); });
  exchange_->begin(
      {200,
       "text/event-stream; charset=utf-8",
       "",
       {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}, {"X-Request-Id", id_}}});
  streaming_ = true;
}

std::unique_ptr<Answer> GenerationSession::make_answer() {
  static constexpr const char* kPrefixes[] = {"chatcmpl-", "cmpl-", "gen-"};
  const auto& request = prepared_.request;
  id_ = context_.make_id(kPrefixes[static_cast<size_t>(request.form)]);
  AnswerContext answer;
  answer.id = id_;
  answer.created = std::time(nullptr);
  answer.model = request.model.empty() ? context_.model_name() : request.model;
  answer.arrival = arrival_;
  answer.tokenizer = context_.model.tokenizer.get();
  answer.request = &prepared_.request;
  answer.prompt_texts = &prepared_.prompt_texts;
  for (const auto& prompt : prepared_.spec.prompts) {
    answer.prompt_ids.push_back(request.logprobs ? prompt.ids : std::vector<TokenId>());
  }
  switch (request.form) {
    case Form::kChat:
      return make_chat_answer(std::move(answer));
    case Form::kCompletion:
      return make_completion_answer(std::move(answer));
    case Form::kGenerate:
      break;
  }
  return make_generate_answer(std::move(answer));
}

void GenerationSession::on_delta(ChoiceDelta delta) {
  if (over_) return;
  ChoiceState& state = choices_[static_cast<size_t>(delta.choice)];
  measure(delta, state);
  if (delta.finish == FinishReason::kError) {
    return fail({500, "generation failed: " + delta.error, "", "internal_error"});
  }
  if (delta.finish == FinishReason::kAbort) {
    const std::string why = delta.error.empty() ? "the server is shutting down" : delta.error;
    return fail({503, "the request was aborted: " + why, "", "aborted"}, &Metrics::aborted);
  }
  state.usage = delta.usage;
  if (delta.finish != FinishReason::kNone) {
    state.finished = true;
    ++finished_;
  }
  const int32_t index = delta.choice;
  if (state.has_news) {
    state.pending.append(std::move(delta));
  } else {
    state.pending = std::move(delta);
  }
  state.pending.choice = index;
  state.has_news = true;
  if (prepared_.request.stream) {
    flush();
  } else if (finished_ == choices_.size()) {
    finish();
  }
}

void GenerationSession::measure(const ChoiceDelta& delta, ChoiceState& state) {
  Metrics& metrics = context_.metrics;
  const auto now = Clock::now();
  if (const size_t count = delta.tokens.size(); count > 0) {
    size_t gaps = count;
    if (!state.any_token) {
      state.any_token = true;
      metrics.time_to_first_token.observe(seconds_since(arrival_));
      state.last_token = now;
      --gaps;
    }
    if (gaps > 0) {
      const std::chrono::duration<double> since = now - state.last_token;
      metrics.inter_token_latency.observe(since.count() / static_cast<double>(gaps), gaps);
    }
    state.last_token = now;
  }
  if (delta.finish == FinishReason::kStop || delta.finish == FinishReason::kLength) {
    metrics.e2e_latency.observe(seconds_since(arrival_));
    metrics.prompt_tokens += static_cast<uint64_t>(delta.usage.prompt_tokens);
    metrics.cached_tokens += static_cast<uint64_t>(delta.usage.cached_tokens);
    metrics.generation_tokens += static_cast<uint64_t>(delta.usage.completion_tokens);
  }
}

void GenerationSession::flush() {
  if (over_) return;
  std::string events;
  for (ChoiceState& state : choices_) {
    if (!exchange_->writable()) return;
    if (!state.has_news || !answer_->worth_sending(state.pending)) continue;
    state.has_news = false;
    events.clear();
    answer_->add_event(std::move(state.pending), events);
    state.pending = {};
    if (state.finished) ++sent_;
    exchange_->write(events);
  }
  if (sent_ == choices_.size()) finish();
}

void GenerationSession::finish() {
  if (prepared_.request.stream) {
    std::vector<Usage> usages;
    for (const ChoiceState& state : choices_) usages.push_back(state.usage);
    std::string events;
    answer_->end_events(usages, events);
    exchange_->write(events);
  } else {
    std::vector<ChoiceDelta> whole;
    for (ChoiceState& state : choices_) whole.push_back(std::move(state.pending));
    HttpResponse response;
    response.body = answer_->body(whole).dump();
    response.headers = {{"X-Request-Id", id_}};
    exchange_->respond(std::move(response));
  }
  log_end("done");
  const auto self = shared_from_this();
  exchange_->end();
  release();
}

void GenerationSession::fail(const ApiError& error, uint64_t Metrics::*count) {
  const auto self = shared_from_this();
  ++(context_.metrics.*count);
  log_end(error.message.c_str());
  if (streaming_) {
    std::string events;
    append_event(to_json(error), events);
    exchange_->write(events + "data: [DONE]\n\n");
    exchange_->end();
  } else {
    exchange_->respond(to_response(error));
  }
  release();
}

void GenerationSession::release() {
  over_ = true;
  timeout_.reset();
  if (completion_) completion_->abort();
}

void GenerationSession::log_end(const char* how) const {
  if (!context_.options.log_requests) return;
  int64_t tokens = 0;
  for (const ChoiceState& state : choices_) tokens += state.usage.completion_tokens;
  base::log_info("request ", id_.empty() ? "(not understood)" : id_, ": ", how, ", ", tokens,
                 " tokens in ", seconds_since(arrival_), " s");
}

}  // namespace attune::server
