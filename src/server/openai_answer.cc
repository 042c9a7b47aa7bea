#include <cstdio>

#include "server/answer.h"
#include "text/tokenizer.h"

namespace attune::server {

using formats::Json;

void append_event(const Json& json, std::string& events) {
  events.append("data: ").append(json.dump()).append("\n\n");
}

Json usage_json(const std::vector<Usage>& usages, int32_t choices_per_prompt) {
  int64_t prompt = 0, cached = 0, completion = 0;
  for (size_t i = 0; i < usages.size(); ++i) {
    completion += usages[i].completion_tokens;
    if (i % static_cast<size_t>(choices_per_prompt) != 0) continue;
    prompt += usages[i].prompt_tokens;
    cached += usages[i].cached_tokens;
  }
  Json details, usage;
  details.set("cached_tokens", cached);
  usage.set("prompt_tokens", prompt);
  usage.set("completion_tokens", completion);
  usage.set("total_tokens", prompt + completion);
  usage.set("prompt_tokens_details", std::move(details));
  return usage;
}

Json finish_json(FinishReason finish) {
  if (finish == FinishReason::kNone) return nullptr;
  return finish == FinishReason::kLength ? "length" : "stop";
}

double json_logprob(float logprob) {
  return logprob > -9999.0f ? double{logprob} : -9999.0;
}

namespace {

// What chat and text answers share: the envelope, the end of a stream.
class OpenAiAnswer : public Answer {
 public:
  OpenAiAnswer(AnswerContext context, const char* whole, const char* chunk)
      : context_(std::move(context)), whole_(whole), chunk_(chunk) {}

  bool worth_sending(const ChoiceDelta& delta) const override {
    return !delta.text.empty() || delta.finish != FinishReason::kNone;
  }

  void end_events(const std::vector<Usage>& usages, std::string& events) override {
    if (context_.request->include_usage) {
      Json chunk = envelope(chunk_);
      chunk.set("choices", Json::Array{});
      chunk.set("usage", usage_json(usages, per_prompt()));
      append_event(chunk, events);
    }
    events += "data: [DONE]\n\n";
  }

  Json body(const std::vector<ChoiceDelta>& choices) override {
    Json::Array list;
    std::vector<Usage> usages;
    for (const ChoiceDelta& choice : choices) {
      list.push_back(choice_json(choice));
      usages.push_back(choice.usage);
    }
    Json body = envelope(whole_);
    body.set("choices", std::move(list));
    body.set("usage", usage_json(usages, per_prompt()));
    return body;
  }

 protected:
  virtual Json choice_json(const ChoiceDelta& choice) = 0;

  Json envelope(const char* object) const {
    Json json;
    json.set("id", context_.id);
    json.set("object", object);
    json.set("created", context_.created);
    json.set("model", context_.model);
    return json;
  }

  void send_choice(Json choice, std::string& events) const {
    Json chunk = envelope(chunk_);
    chunk.set("choices", Json::Array{std::move(choice)});
    if (context_.request->include_usage) chunk.set("usage", nullptr);
    append_event(chunk, events);
  }

  static void set_finish(Json& choice, const ChoiceDelta& delta) {
    choice.set("finish_reason", finish_json(delta.finish));
    if (delta.finish != FinishReason::kStop) return;
    if (!delta.matched_stop.empty()) {
      choice.set("matched_stop", delta.matched_stop);
    } else if (delta.matched_token) {
      choice.set("matched_stop", *delta.matched_token);
    }
  }

  int32_t per_prompt() const { return context_.request->generations[0].n; }
  const text::Tokenizer& tokenizer() const { return *context_.tokenizer; }

  AnswerContext context_;
  const char* const whole_;
  const char* const chunk_;
};

class ChatAnswer : public OpenAiAnswer {
 public:
  explicit ChatAnswer(AnswerContext context)
      : OpenAiAnswer(std::move(context), "chat.completion", "chat.completion.chunk"),
        begun_(static_cast<size_t>(per_prompt())) {}

  void add_event(ChoiceDelta delta, std::string& events) override {
    Json content;
    const auto index = static_cast<size_t>(delta.choice);
    if (!begun_[index]) content.set("role", "assistant");
    if (!begun_[index] || !delta.text.empty()) content.set("content", delta.text);
    if (!content.is_null() || !delta.logprobs.empty()) {
      begun_[index] = true;
      Json choice;
      choice.set("index", delta.choice);
      choice.set("delta", content.is_null() ? Json(Json::Object{}) : std::move(content));
      choice.set("logprobs", logprobs_json(delta));
      choice.set("finish_reason", nullptr);
      send_choice(std::move(choice), events);
    }
    if (delta.finish == FinishReason::kNone) return;
    Json choice;
    choice.set("index", delta.choice);
    choice.set("delta", Json::Object{});
    choice.set("logprobs", nullptr);
    set_finish(choice, delta);
    send_choice(std::move(choice), events);
  }

 protected:
  Json choice_json(const ChoiceDelta& delta) override {
    Json message, choice;
    message.set("role", "assistant");
    message.set("content", delta.text);
    message.set("refusal", nullptr);
    choice.set("index", delta.choice);
    choice.set("message", std::move(message));
    choice.set("logprobs", logprobs_json(delta));
    set_finish(choice, delta);
    return choice;
  }

 private:
  Json token_json(const TokenLogprob& entry) const {
    Json json;
    Json::Array bytes;
    for (const char c : tokenizer().token_bytes(entry.token)) {
      bytes.emplace_back(static_cast<int>(static_cast<unsigned char>(c)));
    }
    json.set("token", tokenizer().token_string(entry.token));
    json.set("logprob", json_logprob(entry.logprob));
    json.set("bytes", std::move(bytes));
    return json;
  }

  Json logprobs_json(const ChoiceDelta& delta) const {
    if (!context_.request->logprobs) return nullptr;
    Json::Array content;
    for (const LogprobEntry& entry : delta.logprobs) {
      Json token = token_json(entry.chosen);
      Json::Array top;
      for (const auto& other : entry.top) top.push_back(token_json(other));
      token.set("top_logprobs", std::move(top));
      content.push_back(std::move(token));
    }
    Json json;
    json.set("content", std::move(content));
    return json;
  }

  std::vector<bool> begun_;
};

class CompletionAnswer : public OpenAiAnswer {
 public:
  explicit CompletionAnswer(AnswerContext context)
      : OpenAiAnswer(std::move(context), "text_completion", "text_completion"),
        echoed_(context_.prompt_ids.size() * static_cast<size_t>(per_prompt()),
                !context_.request->echo) {}

  // An echoed prompt goes out with the first token, when its logprobs are complete.
  bool worth_sending(const ChoiceDelta& delta) const override {
    if (!echoed_[static_cast<size_t>(delta.choice)] && !delta.tokens.empty()) return true;
    return OpenAiAnswer::worth_sending(delta);
  }

  void add_event(ChoiceDelta delta, std::string& events) override {
    send_choice(choice_json(delta), events);
  }

 protected:
  Json choice_json(const ChoiceDelta& delta) override {
    const auto index = static_cast<size_t>(delta.choice);
    const bool echo = !echoed_[index];
    echoed_[index] = true;
    Json choice;
    choice.set("index", delta.choice);
    choice.set("text", echo ? prompt_text(delta) + delta.text : delta.text);
    choice.set("logprobs", logprobs_json(delta, echo));
    set_finish(choice, delta);
    return choice;
  }

 private:
  struct Lists {
    Json::Array tokens, logprobs, top, offsets;
  };

  size_t prompt_of(const ChoiceDelta& delta) const {
    return static_cast<size_t>(delta.choice / per_prompt());
  }
  const std::string& prompt_text(const ChoiceDelta& delta) const {
    return (*context_.prompt_texts)[prompt_of(delta)];
  }

  // The token as text; one that is not whole characters as OpenAI shows it, "bytes:\xe2\x80".
  std::string token_name(TokenId id) const {
    const auto bytes = tokenizer().token_bytes(id);
    const std::string text = tokenizer().token_string(id);
    if (text.find("\xEF\xBF\xBD") == std::string::npos || text == bytes) return std::string(bytes);
    std::string name = "bytes:";
    for (const char c : bytes) {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      name += escape;
    }
    return name;
  }

  void add_entry(const LogprobEntry& entry, int64_t offset, Lists& lists) const {
    Json top = Json::Object{};
    for (const auto& other : entry.top)
      top.set(token_name(other.token), json_logprob(other.logprob));
    top.set(token_name(entry.chosen.token), json_logprob(entry.chosen.logprob));
    lists.tokens.emplace_back(token_name(entry.chosen.token));
    lists.logprobs.emplace_back(json_logprob(entry.chosen.logprob));
    lists.top.push_back(std::move(top));
    lists.offsets.emplace_back(offset);
  }

  // Where each of the prompt's tokens begins in the text that echo shows.
  std::vector<int64_t> prompt_offsets(const ChoiceDelta& delta) const {
    const auto& ids = context_.prompt_ids[prompt_of(delta)];
    const PromptInput& input = context_.request->prompts[prompt_of(delta)];
    std::span<const TokenId> rest = ids;
    std::vector<int64_t> offsets;
    // In a text that the client wrote, special tokens are text; a BOS that was put before it is
    // not.
    const auto bos = tokenizer().bos_id();
    if (input.is_text && bos && ids[0] == *bos &&
        !input.text.starts_with(tokenizer().token_text(*bos))) {
      offsets.push_back(0);
      rest = rest.subspan(1);
    }
    const bool skip = !input.is_text && context_.request->generations[0].skip_special_tokens;
    text::TextStream stream(tokenizer(), {{skip, true}, {}, false});
    const auto pushed = stream.push(rest);
    offsets.insert(offsets.end(), pushed.offsets.begin(), pushed.offsets.end());
    return offsets;
  }

  void add_prompt(const ChoiceDelta& delta, Lists& lists) const {
    const auto& ids = context_.prompt_ids[prompt_of(delta)];
    const auto offsets = prompt_offsets(delta);
    const auto first = static_cast<size_t>(delta.prompt_logprobs_first);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i >= first && i - first < delta.prompt_logprobs.size()) {
        add_entry(delta.prompt_logprobs[i - first], offsets[i], lists);
      } else {  // the first token follows nothing
        lists.tokens.emplace_back(token_name(ids[i]));
        lists.logprobs.emplace_back(nullptr);
        lists.top.emplace_back(nullptr);
        lists.offsets.emplace_back(offsets[i]);
      }
    }
  }

  Json logprobs_json(const ChoiceDelta& delta, bool echo) const {
    if (!context_.request->logprobs) return nullptr;
    Lists lists;
    if (echo) add_prompt(delta, lists);
    const int64_t base = context_.request->echo ? count_characters(prompt_text(delta)) : int64_t{0};
    for (size_t i = 0; i < delta.logprobs.size(); ++i) {
      add_entry(delta.logprobs[i], base + delta.offsets[i], lists);
    }
    Json json;
    json.set("tokens", std::move(lists.tokens));
    json.set("token_logprobs", std::move(lists.logprobs));
    json.set("top_logprobs", std::move(lists.top));
    json.set("text_offset", std::move(lists.offsets));
    return json;
  }

  std::vector<bool> echoed_;
};

}  // namespace

std::unique_ptr<Answer> make_chat_answer(AnswerContext context) {
  return std::make_unique<ChatAnswer>(std::move(context));
}

std::unique_ptr<Answer> make_completion_answer(AnswerContext context) {
  return std::make_unique<CompletionAnswer>(std::move(context));
}

}  // namespace attune::server
