// The sampling rows of every form, and what is checked across fields.
#include <algorithm>
#include <charconv>

#include "server/generation_request.h"

namespace attune::server {

using formats::Json;

namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;  // in all; each choice has tables of several times this
constexpr size_t kMaxStopIds = 1024;
constexpr size_t kMaxBiases = 4096;

auto sampling(auto SamplingParams::*member) {
  return [member](Generation & g) -> auto& {
    return g.sampling.*member;
  };
}
auto own(auto Generation::*member) {
  return [member](Generation & g) -> auto& {
    return g.*member;
  };
}

MaybeFault read_top_k(Generation& g, const Json& value) {
  int64_t k = 0;
  if (auto fault = read_int(value, -1, INT32_MAX, k)) return fault;
  g.sampling.top_k = k == 0 ? -1 : static_cast<int32_t>(k);  // both mean all, as elsewhere
  return std::nullopt;
}

MaybeFault read_seed(Generation& g, const Json& value) {
  int64_t seed = 0;
  if (auto fault = read_int(value, INT64_MIN, INT64_MAX, seed)) return fault;
  g.sampling.seed = static_cast<uint64_t>(seed);
  return std::nullopt;
}

MaybeFault read_stop_ids(Generation& g, const Json& value) {
  if (value.is_array() && value.as_array().size() > kMaxStopIds) {
    return Fault{"must have at most " + std::to_string(kMaxStopIds) + " ids"};
  }
  return read_token_ids(value, g.sampling.stop_token_ids);
}

MaybeFault read_stops(Generation& g, const Json& value) {
  if (auto fault = read_strings(value, kMaxStops, g.stop)) return fault;
  size_t bytes = 0;
  for (const std::string& stop : g.stop) bytes += stop.size();
  if (bytes <= kMaxStopBytes) return std::nullopt;
  return Fault{"must have at most " + std::to_string(kMaxStopBytes) + " bytes in all"};
}

// {"token id": bias}
MaybeFault read_logit_bias(Generation& g, const Json& value) {
  const Fault fault{"must be an object from token ids (as strings) to numbers in [-100, 100]"};
  if (!value.is_object()) return fault;
  if (value.as_object().size() > kMaxBiases) {
    return Fault{"must have at most " + std::to_string(kMaxBiases) + " entries"};
  }
  g.sampling.logit_bias.clear();
  for (const auto& [key, bias] : value.as_object()) {
    TokenId id = -1;
    const char* const end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, id);
    double number = 0;
    if (error != std::errc() || stop != end || id < 0) return fault;
    if (read_number(bias, {-100, 100}, number)) return fault;
    g.sampling.logit_bias.emplace_back(id, static_cast<float>(number));
  }
  return std::nullopt;
}

}  // namespace

std::vector<Field<Generation>> sampling_fields(bool openai) {
  using G = Generation;
  using S = SamplingParams;
  const double hottest = openai ? 2 : 1e6;
  std::vector<Field<G>> rows = {
      number_field<G>("temperature", {0, hottest}, sampling(&S::temperature)),
      number_field<G>("top_p", {0, 1, true}, sampling(&S::top_p)),
      custom_field<G>("top_k", read_top_k),
      number_field<G>("min_p", {0, 1}, sampling(&S::min_p)),
      number_field<G>("repetition_penalty", {0, 2, true}, sampling(&S::repetition_penalty)),
      number_field<G>("presence_penalty", {-2, 2}, sampling(&S::presence_penalty)),
      number_field<G>("frequency_penalty", {-2, 2}, sampling(&S::frequency_penalty)),
      custom_field<G>("logit_bias", read_logit_bias),
      custom_field<G>("stop", read_stops),
      custom_field<G>("stop_token_ids", read_stop_ids),
      bool_field<G>("ignore_eos", sampling(&S::ignore_eos)),
      bool_field<G>("skip_special_tokens", own(&G::skip_special_tokens)),
      bool_field<G>("no_stop_trim", own(&G::no_stop_trim)),
      int_field<G>("n", 1, kMaxChoicesPerPrompt, own(&G::n)),
      unsupported_field<G>("stop_regex", "use 'stop'"),
      unsupported_field<G>("regex", "there is no constrained output yet"),
      unsupported_field<G>("ebnf", "there is no constrained output yet"),
      unsupported_field<G>("json_schema", "there is no constrained output yet"),
      unsupported_field<G>("structural_tag", "there is no constrained output yet"),
      unsupported_field<G>("custom_params", "leave it out"),
      unsupported_field<G>("spaces_between_special_tokens", "only true is", {Json(true)}),
  };
  const auto add = [&](Field<G> row) { rows.push_back(std::move(row)); };
  if (openai) {
    add(custom_field<G>("seed", read_seed));
    add(int_field<G>("max_tokens", 0, INT32_MAX, own(&G::max_tokens)));
    add(int_field<G>("min_tokens", 0, INT32_MAX, sampling(&S::min_new_tokens)));
  } else {
    add(custom_field<G>("sampling_seed", read_seed));
    add(int_field<G>("max_new_tokens", 0, INT32_MAX, own(&G::max_tokens)));
    add(int_field<G>("min_new_tokens", 0, INT32_MAX, sampling(&S::min_new_tokens)));
    add(unsupported_field<G>("stream_interval", "every step is streamed", {Json(1)}));
  }
  return rows;
}

std::optional<ApiError> check_generation(const GenerationRequest& request) {
  for (const Generation& g : request.generations) {
    if (g.max_tokens && g.sampling.min_new_tokens > *g.max_tokens) {
      const bool native = request.form == Form::kGenerate;
      const std::string least = native ? "min_new_tokens" : "min_tokens";
      return ApiError{400,
                      "'" + least + "' is " + std::to_string(g.sampling.min_new_tokens) +
                          ", above the " + std::to_string(*g.max_tokens) +
                          " tokens that are allowed at most",
                      least, "invalid_value"};
    }
    if (g.n != request.generations[0].n) {
      return ApiError{400, "'n' must be the same in every 'sampling_params'", "sampling_params",
                      "invalid_value"};
    }
  }
  const size_t prompts = request.form == Form::kChat ? 1 : request.prompts.size();
  const size_t choices = prompts * static_cast<size_t>(request.generations[0].n);
  if (choices > kMaxChoices) {
    return ApiError{400,
                    "the request asks for " + std::to_string(choices) + " choices; at most " +
                        std::to_string(kMaxChoices) + " are allowed in one",
                    "n", "invalid_value"};
  }
  return std::nullopt;
}

std::optional<ApiError> read_prompts(const Json& value, const std::string& path,
                                     std::vector<PromptInput>& out, bool& batch) {
  const auto add = [&](const Json& item) {
    PromptInput prompt;
    prompt.is_text = item.is_string();
    if (prompt.is_text) prompt.text = item.as_string();
    const bool good = prompt.is_text || !read_token_ids(item, prompt.ids);
    if (good) out.push_back(std::move(prompt));
    return good;
  };
  const auto wrong = [&] {
    return field_error(path, {"must be a string, an array of token ids, or an array of such"},
                       value);
  };
  batch = value.is_array() && !value.as_array().empty() && !value.as_array()[0].is_number();
  if (!batch) {
    if (!add(value)) return wrong();
    return std::nullopt;
  }
  if (value.as_array().size() > kMaxPrompts) {
    return ApiError{400,
                    "'" + path + "' has " + std::to_string(value.as_array().size()) +
                        " prompts; at most " + std::to_string(kMaxPrompts) + " are allowed",
                    path, "invalid_value"};
  }
  for (const Json& item : value.as_array()) {
    if (!add(item)) return wrong();
  }
  return std::nullopt;
}

std::optional<ApiError> parse_generation(Form form, std::string_view body, GenerationRequest& out) {
  Json json;
  if (auto error = parse_body(body, json)) return error;
  switch (form) {
    case Form::kChat:
      return parse_chat(json, out);
    case Form::kCompletion:
      return parse_completion(json, out);
    case Form::kGenerate:
      return parse_generate(json, out);
  }
  return std::nullopt;
}

}  // namespace attune::server
