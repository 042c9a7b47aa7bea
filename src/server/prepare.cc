#include "server/prepare.h"

#include <algorithm>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace attune::server {

using formats::Json;

namespace {

// OpenAI's newer name for the system role; no open model's template knows it.
Json with_known_roles(Json messages) {
  for (Json& message : messages.as_array()) {
    if (const Json* role = message.find("role"); *role == Json("developer")) {
      message.set("role", "system");
    }
  }
  return messages;
}

// A text that is too long is counted this far, for the message; nobody waits for the rest.
size_t most_counted(int32_t token_limit) {
  return static_cast<size_t>(token_limit) + (64 << 10);
}

constexpr const char* kInvalid = "invalid_value";

// `encoded`: the ids are of a text, and no more of them than most_counted() stand for its length.
std::optional<ApiError> check_length(const std::vector<TokenId>& ids, bool encoded,
                                     int32_t token_limit, const std::string& which,
                                     const char* field) {
  const size_t most = encoded ? most_counted(token_limit) : ids.size();
  const std::string why =
      prompt_objection(which, std::min(ids.size(), most), token_limit, ids.size() <= most);
  if (why.empty()) return std::nullopt;
  return ApiError{400, why, field, kInvalid};
}

std::optional<ApiError> encode_chat(const Model& model, const GenerationRequest& request,
                                    int32_t token_limit, std::vector<TokenId>& ids) {
  if (!model.chat_template) {
    return ApiError{400,
                    "the model has no chat template; start the server with --chat-template, or "
                    "use /v1/completions",
                    "messages", "no_chat_template"};
  }
  text::ChatRequest chat;
  chat.messages = with_known_roles(request.messages);
  chat.add_generation_prompt = request.add_generation_prompt;
  chat.continue_final_message = request.continue_final_message;
  chat.template_args = request.template_args;
  const auto prompt = model.chat_template->render(chat);
  if (!prompt.ok()) {
    const bool client = prompt.status().code() != Code::kInternal;
    return ApiError{client ? 400 : 500,
                    "the chat template refused the messages: " + prompt.status().message(),
                    "messages", "chat_template_error"};
  }
  ids = text::encode_prompt(*model.tokenizer, prompt->segments, most_counted(token_limit));
  return check_length(ids, true, token_limit, prompt_name(0, 1), "messages");
}

std::optional<ApiError> encode_prompts(const Model& model, const GenerationRequest& request,
                                       int32_t token_limit, Prepared& out) {
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const PromptInput& prompt = request.prompts[i];
    const char* field = request.form != Form::kGenerate ? "prompt"
                        : prompt.is_text                ? "text"
                                                        : "input_ids";
    std::vector<TokenId> ids = prompt.ids;
    if (prompt.is_text) {
      if (prompt.text.empty()) return ApiError{400, "the prompt is empty", field, kInvalid};
      ids = model.tokenizer->encode(prompt.text, {.max_tokens = most_counted(token_limit)});
    }
    if (auto error = check_length(ids, prompt.is_text, token_limit,
                                  prompt_name(i, request.prompts.size()), field))
      return error;
    const int32_t vocabulary = model.engine->model().vocab_size;
    for (const TokenId id : ids) {
      if (id < 0 || id >= vocabulary) {
        return ApiError{400,
                        "token id " + std::to_string(id) + " is not in the vocabulary of " +
                            std::to_string(vocabulary) + " tokens",
                        field, kInvalid};
      }
    }
    if (request.form == Form::kCompletion) {
      const bool skip = request.generations[0].skip_special_tokens;
      out.prompt_texts.push_back(prompt.is_text ? prompt.text : model.tokenizer->decode(ids, skip));
    }
    out.spec.prompts.push_back({std::move(ids)});
  }
  return std::nullopt;
}

int32_t default_max_tokens(Form form) {
  switch (form) {
    case Form::kCompletion:
      return 16;  // OpenAI's
    case Form::kGenerate:
      return 128;  // SGLang's
    case Form::kChat:
      break;
  }
  return kRestOfContext;
}

std::optional<ApiError> set_logprobs(const GenerationRequest& request, PromptSpec& prompt) {
  if (!request.logprobs) return std::nullopt;
  prompt.sampling.top_logprobs = request.top_logprobs;
  if (request.form == Form::kCompletion && request.echo) prompt.sampling.prompt_logprob_start = 0;
  if (request.form == Form::kGenerate) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    if (request.logprob_start >= length) {
      return ApiError{400,
                      "'logprob_start_len' is " + std::to_string(request.logprob_start) +
                          ", but the prompt has only " + std::to_string(length) + " tokens",
                      "logprob_start_len", "invalid_value"};
    }
    prompt.sampling.prompt_logprob_start = request.logprob_start;
  }
  return std::nullopt;
}

}  // namespace

int32_t token_limit(const Engine& engine) {
  const EngineStats stats = engine.stats();
  const int64_t pool = int64_t{stats.total_pages} * stats.page_size;
  const int32_t context = engine.model().max_model_len;
  return pool > 0 ? static_cast<int32_t>(std::min<int64_t>(pool, context)) : context;
}

std::optional<ApiError> prepare(const Model& model, int32_t token_limit, GenerationRequest request,
                                Prepared& out) {
  out.spec.token_limit = token_limit;
  out.spec.n = request.generations[0].n;
  out.spec.priority = request.priority;
  out.spec.cache_salt = request.cache_salt;
  if (request.form == Form::kChat) {
    out.spec.prompts.emplace_back();
    if (auto error = encode_chat(model, request, token_limit, out.spec.prompts[0].ids))
      return error;
  } else if (auto error = encode_prompts(model, request, token_limit, out)) {
    return error;
  }
  for (size_t i = 0; i < out.spec.prompts.size(); ++i) {
    const Generation& generation = request.generation(i);
    PromptSpec& prompt = out.spec.prompts[i];
    prompt.sampling = generation.sampling;
    prompt.sampling.max_new_tokens =
        generation.max_tokens.value_or(default_max_tokens(request.form));
    prompt.stop = generation.stop;
    prompt.skip_special_tokens = generation.skip_special_tokens;
    prompt.no_stop_trim = generation.no_stop_trim;
    if (auto error = set_logprobs(request, prompt)) return error;
  }
  out.request = std::move(request);
  return std::nullopt;
}

}  // namespace attune::server
