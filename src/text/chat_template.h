// A model's chat template: from messages to the prompt's text, in segments that remember which
// characters the template wrote (trusted) and which came from the request (never a control token).
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attune/request.h"
#include "attune/status.h"
#include "formats/json.h"

namespace attune::text {

class Tokenizer;

// A stretch of the prompt of one origin. Trusted: literals of the template and its special-token
// variables (bos_token, ...). Everything that a request supplies (messages, tools, documents,
// template arguments), and everything computed from it where characters can't be followed, is not
// trusted.
struct Segment {
  std::string text;
  bool trusted = false;
  bool operator==(const Segment&) const = default;
};

// Neighbouring segments differ in `trusted`; none is empty.
struct Prompt {
  std::vector<Segment> segments;
  std::string text() const;  // all of them joined
};

// What a template sees under its own name, as in tokenizer_config.json: {"bos_token", "<s>"}, ...
// A token that the model lacks is left out (the template then prints nothing for it).
using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

struct ChatRequest {
  formats::Json messages;   // array of objects, as in the OpenAI API
  formats::Json tools;      // array, or null: none
  formats::Json documents;  // array, or null: none
  bool add_generation_prompt = true;
  // The last message is the start of the answer: the prompt ends where its content ends.
  // REQUIRES: not together with add_generation_prompt.
  bool continue_final_message = false;
  // chat_template_kwargs: more variables, e.g. enable_thinking. They go before the special tokens'
  // names and never replace messages, tools, documents or add_generation_prompt.
  formats::Json::Object template_args;
  std::optional<std::tm> now;  // what strftime_now tells; unset: the system clock's local time
};

// How a template takes a message's content. kString: parts ([{type: "text", text}, ...]) are joined
// with one blank before the template sees them, as SGLang does; kParts: the template loops over
// them.
enum class ContentFormat : uint8_t { kString, kParts };

// What one render may use. Beyond any of them: resource_exhausted.
struct RenderLimits {
  size_t max_steps = 20'000'000;  // statements, expressions, elements and characters/64 visited
  size_t max_output_bytes = 64u << 20;
  size_t max_memory_bytes = 512u << 20;  // of values made while rendering, counted when made
};

// Immutable; any number of threads may render at once.
class ChatTemplate {
 public:
  // Parses a Jinja template. invalid_argument (with the line) when it is no template of the
  // language that transformers renders, unsupported for include/import/extends and unknown tags,
  // filters, tests.
  static Result<ChatTemplate> compile(std::string_view source, SpecialTokens special_tokens,
                                      RenderLimits limits = {});

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The prompt as transformers' apply_chat_template(tokenize=False) would write it. Beyond that,
  // two mends for what OpenAI clients send: tool_calls' `arguments` are given as objects when they
  // are JSON text, and a null content stays null; if the template fails on these it gets the text,
  // and "". Errors: invalid_argument for a malformed request, for a refusal by the template itself
  // (raise_exception: its own message), for an expression that fails (with the line);
  // resource_exhausted beyond the limits.
  Result<Prompt> render(const ChatRequest& request) const;

  ContentFormat content_format() const;
  // Whether the template reads a variable of this name, e.g. "tools" or "enable_thinking".
  bool mentions(std::string_view variable) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// The ids of a rendered prompt. Special tokens are recognised only where their whole text is
// trusted; the text between them is encoded as one piece, across segment borders. So it equals
// encoding the joined text with special tokens on whenever no request text takes part in one. Adds
// no BOS or EOS: the template writes its own. max_tokens: as in EncodeOptions.
std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::span<const Segment> segments,
                                   size_t max_tokens = 0);

}  // namespace attune::text
