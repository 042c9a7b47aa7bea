// How answers look on the wire: one Answer per request, of OpenAI's or SGLang's form.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/json.h"
#include "server/completion.h"
#include "server/generation_request.h"
#include "server/http.h"

namespace attune::server {

struct AnswerContext {
  std::string id;       // "chatcmpl-..."
  int64_t created = 0;  // Unix time, seconds
  std::string model;    // as the client called it
  Clock::time_point arrival;
  const text::Tokenizer* tokenizer = nullptr;
  const GenerationRequest* request = nullptr;  // this and the rest outlive the answer
  const std::vector<std::string>* prompt_texts = nullptr;
  std::vector<std::vector<TokenId>> prompt_ids;
};

// Writes server-sent events, or one JSON body. Not both.
class Answer {
 public:
  virtual ~Answer() = default;
  // Whether this much news about a choice is worth an event; if not, it waits for more.
  virtual bool worth_sending(const ChoiceDelta& delta) const = 0;
  virtual void add_event(ChoiceDelta delta, std::string& events) = 0;
  // After the last choice's last event. `usages`: final, one per choice.
  virtual void end_events(const std::vector<Usage>& usages, std::string& events) = 0;
  // Each choice's whole text and tokens, by index.
  virtual formats::Json body(const std::vector<ChoiceDelta>& choices) = 0;
};

std::unique_ptr<Answer> make_chat_answer(AnswerContext context);
std::unique_ptr<Answer> make_completion_answer(AnswerContext context);
std::unique_ptr<Answer> make_generate_answer(AnswerContext context);

void append_event(const formats::Json& json, std::string& events);
// OpenAI's usage object. A prompt counts once, however many choices it has.
formats::Json usage_json(const std::vector<Usage>& usages, int32_t choices_per_prompt);
// "stop", "length", or null while there is none.
formats::Json finish_json(FinishReason finish);
// Finite: what can't be drawn has -9999.
double json_logprob(float logprob);

}  // namespace attune::server
