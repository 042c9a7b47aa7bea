// What the generating routes ask for, whatever form it came in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attune/request.h"
#include "formats/json.h"
#include "server/api_error.h"
#include "server/fields.h"

namespace attune::server {

enum class Form : uint8_t { kChat, kCompletion, kGenerate };

// How one prompt is continued.
struct Generation {
  SamplingParams sampling;  // all but max_new_tokens and the logprob members, which preparing sets
  std::optional<int32_t> max_tokens;  // unset: the form's default
  int32_t n = 1;
  std::vector<std::string> stop;
  bool skip_special_tokens = true;
  bool no_stop_trim = false;
};

// Text to be tokenized, or ids.
struct PromptInput {
  std::string text;
  std::vector<TokenId> ids;
  bool is_text = true;
};

struct GenerationRequest {
  Form form = Form::kGenerate;
  std::string model;
  std::vector<Generation> generations = std::vector<Generation>(1);  // one for all, or per prompt
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  int32_t priority = 0;
  std::string cache_salt;

  // kCompletion, kGenerate
  std::vector<PromptInput> prompts;
  bool batch = false;  // the prompts came as a list
  bool echo = false;
  std::optional<int32_t> best_of;

  // kChat
  formats::Json messages;
  formats::Json::Object template_args;
  bool add_generation_prompt = true;
  bool continue_final_message = false;

  // kGenerate
  std::vector<std::string> ids;  // the client's own, one per prompt
  int32_t logprob_start = -1;    // prompt logprobs from here on
  bool text_in_logprobs = false;

  Generation& generation(size_t prompt) {
    return generations[generations.size() == 1 ? 0 : prompt];
  }
  const Generation& generation(size_t prompt) const {
    return generations[generations.size() == 1 ? 0 : prompt];
  }
};

constexpr int32_t kMaxChoicesPerPrompt = 128;
constexpr size_t kMaxPrompts = 2048;
constexpr size_t kMaxChoices = 4096;  // of one request
constexpr int32_t kMaxTopLogprobs = 20;

// The rows that all forms share, by OpenAI's names and SGLang's. `openai`: with OpenAI's ranges.
std::vector<Field<Generation>> sampling_fields(bool openai);

// From a body to a request. An error names the field.
std::optional<ApiError> parse_chat(const formats::Json& body, GenerationRequest& out);
std::optional<ApiError> parse_completion(const formats::Json& body, GenerationRequest& out);
std::optional<ApiError> parse_generate(const formats::Json& body, GenerationRequest& out);
std::optional<ApiError> parse_generation(Form form, std::string_view body, GenerationRequest& out);

// A prompt in any of its shapes: a string, ids, or an array of either.
std::optional<ApiError> read_prompts(const formats::Json& value, const std::string& path,
                                     std::vector<PromptInput>& out, bool& batch);
// What holds whatever the form is: counts, and that min_tokens is not above max_tokens.
std::optional<ApiError> check_generation(const GenerationRequest& request);

}  // namespace attune::server
