// The body of /generate, SGLang's native form.
#include <algorithm>

#include "server/generation_request.h"

namespace attune::server {

using formats::Json;

namespace {

using R = GenerationRequest;

// Where a field belongs that was refused as unknown, for those who know it from another form.
// `top`: it stood beside sampling_params, not in it.
std::optional<ApiError> with_advice(std::optional<ApiError> error, bool top) {
  if (!error || error->code != "unknown_parameter") return error;
  static constexpr std::pair<const char*, const char*> kOtherNames[] = {
      {"max_tokens", "max_new_tokens"},
      {"max_completion_tokens", "max_new_tokens"},
      {"min_tokens", "min_new_tokens"},
      {"seed", "sampling_seed"}};
  const std::string given = error->param.substr(error->param.rfind('.') + 1);
  std::string ours = given;
  for (const auto& [theirs, name] : kOtherNames) {
    if (given == theirs) ours = name;
  }
  const auto table = sampling_fields(false);
  const bool known = std::any_of(table.begin(), table.end(),
                                 [&](const auto& field) { return field.name == ours; });
  if (!known) return error;
  error->message =
      "unknown field '" + error->param + "'; " +
      (top ? "put '" + ours + "' under 'sampling_params'" : "here it is '" + ours + "'");
  return error;
}

// One object for all prompts, or one per prompt.
std::optional<ApiError> read_sampling(const Json& value, R& request) {
  static const auto table = sampling_fields(false);
  const auto read = [](const Json& item, const std::string& path,
                       Generation& out) -> std::optional<ApiError> {
    if (!item.is_object()) return field_error(path, {"must be an object"}, item);
    return with_advice(read_fields(table, item, path + ".", out), false);
  };
  if (!value.is_array()) return read(value, "sampling_params", request.generations[0]);
  if (!request.batch || value.as_array().size() != request.prompts.size()) {
    return ApiError{400, "'sampling_params' as an array must have one entry per prompt",
                    "sampling_params", "invalid_value"};
  }
  request.generations.assign(value.as_array().size(), Generation());
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    const std::string path = "sampling_params[" + std::to_string(i) + "]";
    if (auto error = read(value.as_array()[i], path, request.generations[i])) return error;
  }
  return std::nullopt;
}

MaybeFault read_ids(R& request, const Json& value) {
  request.ids.clear();
  if (value.is_string()) return read_name(value, request.ids.emplace_back());
  return read_strings(value, kMaxPrompts, request.ids);
}

const std::vector<Field<R>>& generate_fields() {
  static const std::vector<Field<R>> table = [] {
    std::vector<Field<R>> rows = {
        name_field<R>(
            "model", [](R & r) -> auto& { return r.model; }),
        ignored_field<R>("text"),             // read first: see parse_generate
        ignored_field<R>("input_ids"),        // likewise
        ignored_field<R>("sampling_params"),  // read last
        bool_field<R>(
            "stream", [](R & r) -> auto& { return r.stream; }),
        bool_field<R>(
            "return_logprob", [](R & r) -> auto& { return r.logprobs; }),
        int_field<R>(
            "logprob_start_len", -1, INT32_MAX, [](R & r) -> auto& { return r.logprob_start; }),
        int_field<R>(
            "top_logprobs_num", 0, kMaxTopLogprobs, [](R & r) -> auto& { return r.top_logprobs; }),
        bool_field<R>(
            "return_text_in_logprobs", [](R & r) -> auto& { return r.text_in_logprobs; }),
        custom_field<R>("rid", read_ids),
        name_field<R>(
            "cache_salt", [](R & r) -> auto& { return r.cache_salt; }),
        int_field<R>(
            "priority", INT32_MIN, INT32_MAX, [](R & r) -> auto& { return r.priority; }),
        name_field<R>(
            "extra_key", [](R & r) -> auto& { return r.cache_salt; }),
        ignored_field<R>("log_metrics"),
    };
    for (const char* name :
         {"image_data", "video_data", "audio_data", "input_embeds", "modalities"}) {
      rows.push_back(unsupported_field<R>(name, "only text is"));
    }
    for (const char* name : {"lora_path", "session_params", "custom_logit_processor",
                             "token_ids_logprob", "return_hidden_states"}) {
      rows.push_back(unsupported_field<R>(name, "leave it out", {Json(false)}));
    }
    return rows;
  }();
  return table;
}

}  // namespace

std::optional<ApiError> parse_generate(const Json& body, GenerationRequest& out) {
  out.form = Form::kGenerate;
  const Json* text = body.find("text");
  const Json* ids = body.find("input_ids");
  if (text && text->is_null()) text = nullptr;
  if (ids && ids->is_null()) ids = nullptr;
  if (!text == !ids) {
    return ApiError{400, "exactly one of 'text' and 'input_ids' is required", "text",
                    text ? "invalid_value" : "missing_required_parameter"};
  }
  if (auto error =
          read_prompts(text ? *text : *ids, text ? "text" : "input_ids", out.prompts, out.batch)) {
    return error;
  }
  for (const PromptInput& prompt : out.prompts) {
    if (prompt.is_text != (text != nullptr)) {
      return field_error(text ? "text" : "input_ids",
                         {text ? "must be a string or an array of strings"
                               : "must be an array of token ids, or an array of such"},
                         text ? *text : *ids);
    }
  }
  if (auto error = with_advice(read_fields(generate_fields(), body, "", out), true)) return error;
  if (const Json* sampling = body.find("sampling_params"); sampling && !sampling->is_null()) {
    if (auto error = read_sampling(*sampling, out)) return error;
  }
  if (!out.ids.empty() && out.ids.size() != out.prompts.size()) {
    return ApiError{400, "'rid' must have one id per prompt", "rid", "invalid_value"};
  }
  return check_generation(out);
}

}  // namespace attune::server
