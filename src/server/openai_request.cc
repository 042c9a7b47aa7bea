// The bodies of /v1/chat/completions and /v1/completions.
// https://platform.openai.com/docs/api-reference
#include <algorithm>
#include <array>

#include "server/generation_request.h"

namespace attune::server {

using formats::Json;

namespace {

using R = GenerationRequest;
using Table = std::vector<Field<R>>;

const char* const kNoTools = "tool calling is not offered yet; describe the tools in a message";

MaybeFault read_stream_options(R& request, const Json& value) {
  if (!value.is_object()) return Fault{"must be an object"};
  for (const auto& [name, option] : value.as_object()) {
    if (option.is_null()) continue;
    if (name == "include_usage") {
      if (auto fault = read_bool(option, request.include_usage)) {
        return Fault{"has an include_usage that " + fault->what};
      }
    } else if (name != "include_obfuscation" || option != Json(false)) {
      return Fault{"has the unknown member '" + name + "'", "unknown_parameter"};
    }
  }
  return std::nullopt;
}

MaybeFault read_max_completion_tokens(R& request, const Json& value) {
  int64_t most = 0;
  if (auto fault = read_int(value, 0, INT32_MAX, most)) return fault;
  auto& max_tokens = request.generations[0].max_tokens;
  if (max_tokens && *max_tokens != most) return Fault{"must not differ from 'max_tokens'"};
  max_tokens = static_cast<int32_t>(most);
  return std::nullopt;
}

// What both routes have.
Table shared_fields() {
  Table table;
  add_part(table, sampling_fields(true), [](R& r) -> Generation& { return r.generations[0]; });
  const Table own = {
      name_field<R>(
          "model", [](R & r) -> auto& { return r.model; }),
      bool_field<R>(
          "stream", [](R & r) -> auto& { return r.stream; }),
      custom_field<R>("stream_options", read_stream_options),
      name_field<R>(
          "cache_salt", [](R & r) -> auto& { return r.cache_salt; }),
      int_field<R>(
          "priority", INT32_MIN, INT32_MAX, [](R & r) -> auto& { return r.priority; }),
      unsupported_field<R>("response_format", "only {\"type\": \"text\"} is",
                           {Json(Json::Object{{"type", "text"}})}),
  };
  table.insert(table.end(), own.begin(), own.end());
  for (const char* name :
       {"user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"}) {
    table.push_back(ignored_field<R>(name));
  }
  return table;
}

const Table& chat_fields() {
  static const Table table = [] {
    Table rows = shared_fields();
    const Table own = {
        custom_field<R>("messages",
                        [](R& r, const Json& value) -> MaybeFault {
                          if (!value.is_array() || value.as_array().empty()) {
                            return Fault{"must be an array of at least one message"};
                          }
                          r.messages = value;
                          return std::nullopt;
                        }),
        custom_field<R>("chat_template_kwargs",
                        [](R& r, const Json& value) -> MaybeFault {
                          if (!value.is_object()) return Fault{"must be an object"};
                          r.template_args = value.as_object();
                          return std::nullopt;
                        }),
        bool_field<R>(
            "add_generation_prompt", [](R & r) -> auto& { return r.add_generation_prompt; }),
        bool_field<R>(
            "continue_final_message", [](R & r) -> auto& { return r.continue_final_message; }),
        custom_field<R>("max_completion_tokens", read_max_completion_tokens),
        bool_field<R>(
            "logprobs", [](R & r) -> auto& { return r.logprobs; }),
        int_field<R>(
            "top_logprobs", 0, kMaxTopLogprobs, [](R & r) -> auto& { return r.top_logprobs; }),
        unsupported_field<R>("tools", kNoTools, {Json(Json::Array{})}),
        unsupported_field<R>("tool_choice", kNoTools, {Json("none"), Json("auto")}),
        unsupported_field<R>("parallel_tool_calls", kNoTools),
        unsupported_field<R>("functions", kNoTools, {Json(Json::Array{})}),
        unsupported_field<R>("function_call", kNoTools, {Json("none"), Json("auto")}),
        unsupported_field<R>("audio", "only text is"),
        unsupported_field<R>("modalities", "only [\"text\"] is", {Json(Json::Array{"text"})}),
        unsupported_field<R>("prediction", "leave it out"),
        unsupported_field<R>("web_search_options", "leave it out"),
        unsupported_field<R>("reasoning_effort",
                             "where the model's template has such a switch, set it in "
                             "'chat_template_kwargs', e.g. {\"enable_thinking\": false}"),
        unsupported_field<R>("verbosity", "leave it out"),
    };
    rows.insert(rows.end(), own.begin(), own.end());
    return rows;
  }();
  return table;
}

const Table& completion_fields() {
  static const Table table = [] {
    Table rows = shared_fields();
    const Table own = {
        custom_field<R>("prompt",
                        [](R& r, const Json& value) -> MaybeFault {
                          r.prompts.clear();
                          if (read_prompts(value, "prompt", r.prompts, r.batch)) {
                            return Fault{
                                "must be a string, an array of token ids, or an array of at most " +
                                std::to_string(kMaxPrompts) + " of such"};
                          }
                          return std::nullopt;
                        }),
        bool_field<R>(
            "echo", [](R & r) -> auto& { return r.echo; }),
        custom_field<R>("logprobs",
                        [](R& r, const Json& value) -> MaybeFault {
                          int64_t count = 0;
                          if (auto fault = read_int(value, 0, kMaxTopLogprobs, count)) return fault;
                          r.logprobs = true;
                          r.top_logprobs = static_cast<int32_t>(count);
                          return std::nullopt;
                        }),
        custom_field<R>("best_of",
                        [](R& r, const Json& value) -> MaybeFault {
                          int64_t count = 0;
                          if (auto fault = read_int(value, 1, kMaxChoicesPerPrompt, count))
                            return fault;
                          r.best_of = static_cast<int32_t>(count);
                          return std::nullopt;
                        }),
        unsupported_field<R>("suffix", "leave it out"),
    };
    rows.insert(rows.end(), own.begin(), own.end());
    return rows;
  }();
  return table;
}

std::optional<ApiError> check_shared(const R& request) {
  if (request.include_usage && !request.stream) {
    return ApiError{400, "'stream_options' is allowed only with \"stream\": true", "stream_options",
                    "invalid_value"};
  }
  return check_generation(request);
}

// --- messages ---

constexpr std::array kRoles = {"system", "developer", "user", "assistant", "tool", "function"};

// A message's content: a string, null, or an array of text parts.
std::optional<ApiError> check_content(const Json& content, const std::string& path) {
  if (content.is_null() || content.is_string()) return std::nullopt;
  const Fault fault{"must be a string or an array of parts of {\"type\": \"text\", \"text\": ...}"};
  if (!content.is_array()) return field_error(path, fault, content);
  for (size_t i = 0; i < content.as_array().size(); ++i) {
    const Json& part = content.as_array()[i];
    const std::string at = path + "[" + std::to_string(i) + "]";
    const Json* type = part.find("type");
    if (!type || !type->is_string()) return field_error(at, fault, part);
    if (type->as_string() != "text") {
      return ApiError{400,
                      "'" + at + "' is a part of type '" + type->as_string() +
                          "', which this model does not take; only 'text' is supported",
                      at, "unsupported_parameter"};
    }
    const Json* text = part.find("text");
    if (!text || !text->is_string()) return field_error(at, fault, part);
  }
  return std::nullopt;
}

struct Message {};  // read for its checks only: templates see the JSON

const std::vector<Field<Message>>& message_fields() {
  using M = Message;
  const auto text = [](M&, const Json& value) -> MaybeFault {
    std::string ignored;
    return read_string(value, ignored);
  };
  const auto list = [](M&, const Json& value) -> MaybeFault {
    if (value.is_array()) return std::nullopt;
    return Fault{"must be an array"};
  };
  static const std::vector<Field<M>> table = {
      custom_field<M>(
          "role",
          [](M&, const Json& value) -> MaybeFault {
            const bool known = value.is_string() && std::find(kRoles.begin(), kRoles.end(),
                                                              value.as_string()) != kRoles.end();
            if (known) return std::nullopt;
            return Fault{"must be one of system, developer, user, assistant, tool, function"};
          }),
      ignored_field<M>("content"),  // check_content has the path
      custom_field<M>("name", text),
      custom_field<M>("tool_call_id", text),
      custom_field<M>("reasoning_content", text),
      custom_field<M>("reasoning", text),
      custom_field<M>("refusal", text),
      custom_field<M>("tool_calls", list),
      custom_field<M>("annotations", list),
      unsupported_field<M>("audio", "only text is"),
      unsupported_field<M>("function_call", "use 'tool_calls'"),
  };
  return table;
}

std::optional<ApiError> check_messages(const Json& messages) {
  for (size_t i = 0; i < messages.as_array().size(); ++i) {
    const Json& message = messages.as_array()[i];
    const std::string at = "messages[" + std::to_string(i) + "]";
    if (!message.is_object()) return field_error(at, {"must be an object"}, message);
    Message ignored;
    if (auto error = read_fields(message_fields(), message, at + ".", ignored)) return error;
    const Json* role = message.find("role");
    if (!role || role->is_null()) return missing_field(at + ".role");
    const Json* content = message.find("content");
    const bool may_lack = role->as_string() == "assistant";
    if (!may_lack && (!content || content->is_null())) return missing_field(at + ".content");
    if (content) {
      if (auto error = check_content(*content, at + ".content")) return error;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> parse_chat(const Json& body, GenerationRequest& out) {
  out.form = Form::kChat;
  if (auto error = read_fields(chat_fields(), body, "", out)) return error;
  if (out.messages.is_null()) return missing_field("messages");
  if (auto error = check_messages(out.messages)) return error;
  if (out.top_logprobs > 0 && !out.logprobs) {
    return ApiError{400, "'top_logprobs' needs \"logprobs\": true", "top_logprobs",
                    "invalid_value"};
  }
  if (out.continue_final_message) {
    if (const Json* asked = body.find("add_generation_prompt"); asked && *asked == Json(true)) {
      return ApiError{400,
                      "'continue_final_message' and 'add_generation_prompt' exclude each other",
                      "continue_final_message", "invalid_value"};
    }
    out.add_generation_prompt = false;
  }
  return check_shared(out);
}

std::optional<ApiError> parse_completion(const Json& body, GenerationRequest& out) {
  out.form = Form::kCompletion;
  if (auto error = read_fields(completion_fields(), body, "", out)) return error;
  if (out.prompts.empty()) return missing_field("prompt");
  if (out.best_of && *out.best_of != out.generations[0].n) {
    return ApiError{400, "'best_of' other than 'n' is not supported; leave it out", "best_of",
                    "unsupported_parameter"};
  }
  return check_shared(out);
}

}  // namespace attune::server
