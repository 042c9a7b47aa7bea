// SGLang's native form: one object per choice; in a stream each event repeats the text so far.
#include "server/answer.h"
#include "text/tokenizer.h"

namespace attune::server {

using formats::Json;

namespace {

class GenerateAnswer : public Answer {
 public:
  explicit GenerateAnswer(AnswerContext context)
      : context_(std::move(context)), so_far_(choices()) {}

  bool worth_sending(const ChoiceDelta& delta) const override {
    return !delta.tokens.empty() || !delta.text.empty() || delta.finish != FinishReason::kNone;
  }

  void add_event(ChoiceDelta delta, std::string& events) override {
    ChoiceDelta& choice = so_far_[static_cast<size_t>(delta.choice)];
    choice.choice = delta.choice;
    choice.append(std::move(delta));
    Json json = choice_json(choice);
    if (is_list()) json.set("index", choice.choice);
    append_event(json, events);
  }

  void end_events(const std::vector<Usage>&, std::string& events) override {
    events += "data: [DONE]\n\n";
  }

  Json body(const std::vector<ChoiceDelta>& choices) override {
    if (!is_list()) return choice_json(choices[0]);
    Json::Array list;
    for (const ChoiceDelta& choice : choices) list.push_back(choice_json(choice));
    return list;
  }

 private:
  size_t per_prompt() const { return static_cast<size_t>(context_.request->generations[0].n); }
  size_t choices() const { return context_.prompt_ids.size() * per_prompt(); }
  bool is_list() const { return context_.request->batch || per_prompt() > 1; }

  Json choice_json(const ChoiceDelta& choice) const {
    Json::Array ids(choice.tokens.begin(), choice.tokens.end());
    Json json;
    json.set("text", choice.text);
    json.set("output_ids", std::move(ids));
    json.set("meta_info", meta_info(choice));
    return json;
  }

  std::string id(const ChoiceDelta& choice) const {
    const auto index = static_cast<size_t>(choice.choice);
    const auto& own = context_.request->ids;
    if (!own.empty() && per_prompt() == 1) return own[index];
    const std::string base = own.empty() ? context_.id : own[index / per_prompt()];
    return is_list() ? base + "_" + std::to_string(index) : base;
  }

  static Json finish_reason(const ChoiceDelta& choice) {
    if (choice.finish == FinishReason::kNone) return nullptr;
    Json json;
    json.set("type", finish_json(choice.finish));
    if (choice.finish == FinishReason::kLength) {
      json.set("length", choice.usage.completion_tokens);
    } else if (!choice.matched_stop.empty()) {
      json.set("matched", choice.matched_stop);
    } else if (choice.matched_token) {
      json.set("matched", *choice.matched_token);
    }
    return json;
  }

  Json meta_info(const ChoiceDelta& choice) const {
    Json meta;
    meta.set("id", id(choice));
    meta.set("finish_reason", finish_reason(choice));
    meta.set("prompt_tokens", choice.usage.prompt_tokens);
    meta.set("completion_tokens", choice.usage.completion_tokens);
    meta.set("cached_tokens", choice.usage.cached_tokens);
    if (context_.request->logprobs) add_logprobs(choice, meta);
    if (choice.finish != FinishReason::kNone) {
      const std::chrono::duration<double> age = Clock::now() - context_.arrival;
      meta.set("e2e_latency", age.count());
    }
    return meta;
  }

  Json token_json(TokenId token, Json logprob) const {
    Json text;
    if (context_.request->text_in_logprobs) text = context_.tokenizer->token_string(token);
    return Json::Array{std::move(logprob), token, std::move(text)};
  }
  Json token_json(const TokenLogprob& entry) const {
    return token_json(entry.token, json_logprob(entry.logprob));
  }

  void add_entry(const LogprobEntry& entry, Json::Array& tokens, Json::Array& tops) const {
    tokens.push_back(token_json(entry.chosen));
    Json::Array top;
    for (const auto& other : entry.top) top.push_back(token_json(other));
    tops.push_back(std::move(top));
  }

  void add_logprobs(const ChoiceDelta& choice, Json& meta) const {
    Json::Array input, input_top, output, output_top;
    if (context_.request->logprob_start == 0) {  // the first token follows nothing
      const auto& ids = context_.prompt_ids[static_cast<size_t>(choice.choice) / per_prompt()];
      input.push_back(token_json(ids[0], nullptr));
      input_top.emplace_back(nullptr);
    }
    for (const auto& entry : choice.prompt_logprobs) add_entry(entry, input, input_top);
    for (const auto& entry : choice.logprobs) add_entry(entry, output, output_top);
    meta.set("input_token_logprobs", std::move(input));
    meta.set("output_token_logprobs", std::move(output));
    if (context_.request->top_logprobs == 0) return;
    meta.set("input_top_logprobs", std::move(input_top));
    meta.set("output_top_logprobs", std::move(output_top));
  }

  AnswerContext context_;
  std::vector<ChoiceDelta> so_far_;
};

}  // namespace

std::unique_ptr<Answer> make_generate_answer(AnswerContext context) {
  return std::make_unique<GenerateAnswer>(std::move(context));
}

}  // namespace attune::server
