// /v1/tokenize and /v1/detokenize.
#include "server/fields.h"
#include "server/generation_request.h"
#include "server/routes.h"
#include "text/tokenizer.h"

namespace attune::server {

using formats::Json;

namespace {

struct TokenizeRequest {
  std::string model;
  std::vector<PromptInput> prompts;
  bool batch = false;
  bool add_special_tokens = true;
  bool skip_special_tokens = true;
};

HttpResponse json_response(const Json& json) {
  return {200, "application/json", json.dump()};
}

// {"prompt": "text"} or a list of texts.
HttpResponse tokenize_body(const Model& model, int32_t limit, const std::string& body) {
  using T = TokenizeRequest;
  static const std::vector<Field<T>> table = {
      name_field<T>(
          "model", [](T & t) -> auto& { return t.model; }),
      custom_field<T>("prompt",
                      [](T& t, const Json& value) -> MaybeFault {
                        const Fault fault{"must be a string or an array of at most " +
                                          std::to_string(kMaxPrompts) + " strings"};
                        if (read_prompts(value, "prompt", t.prompts, t.batch)) return fault;
                        for (const auto& prompt : t.prompts) {
                          if (!prompt.is_text) return fault;
                        }
                        return std::nullopt;
                      }),
      bool_field<T>(
          "add_special_tokens", [](T & t) -> auto& { return t.add_special_tokens; }),
  };
  Json json;
  T request;
  if (auto error = parse_body(body, json)) return to_response(*error);
  if (auto error = read_fields(table, json, "", request)) return to_response(*error);
  if (request.prompts.empty()) return to_response(missing_field("prompt"));
  Json::Array tokens, counts;
  for (const PromptInput& prompt : request.prompts) {
    const auto ids = model.tokenizer->encode(prompt.text, {true, request.add_special_tokens});
    counts.emplace_back(ids.size());
    tokens.emplace_back(Json::Array(ids.begin(), ids.end()));
  }
  Json answer;
  answer.set("tokens", request.batch ? Json(std::move(tokens)) : std::move(tokens[0]));
  answer.set("count", request.batch ? Json(std::move(counts)) : std::move(counts[0]));
  answer.set("max_model_len", limit);
  return json_response(answer);
}

// {"tokens": [ids]} or a list of such.
HttpResponse detokenize_body(const Model& model, const std::string& body) {
  using T = TokenizeRequest;
  static const std::vector<Field<T>> table = {
      name_field<T>(
          "model", [](T & t) -> auto& { return t.model; }),
      custom_field<T>("tokens",
                      [](T& t, const Json& value) -> MaybeFault {
                        const Fault fault{"must be an array of token ids, or an array of at most " +
                                          std::to_string(kMaxPrompts) + " such"};
                        if (read_prompts(value, "tokens", t.prompts, t.batch)) return fault;
                        for (const auto& prompt : t.prompts) {
                          if (prompt.is_text) return fault;
                        }
                        return std::nullopt;
                      }),
      bool_field<T>(
          "skip_special_tokens", [](T & t) -> auto& { return t.skip_special_tokens; }),
  };
  Json json;
  T request;
  if (auto error = parse_body(body, json)) return to_response(*error);
  if (auto error = read_fields(table, json, "", request)) return to_response(*error);
  if (request.prompts.empty()) return to_response(missing_field("tokens"));
  Json::Array texts;
  for (const PromptInput& prompt : request.prompts) {
    for (const TokenId id : prompt.ids) {
      if (id >= model.tokenizer->vocab_size()) {
        return to_response({400,
                            "token id " + std::to_string(id) + " is not in the vocabulary of " +
                                std::to_string(model.tokenizer->vocab_size()) + " tokens",
                            "tokens", "invalid_value"});
      }
    }
    texts.emplace_back(model.tokenizer->decode(prompt.ids, request.skip_special_tokens));
  }
  Json answer;
  answer.set("text", request.batch ? Json(std::move(texts)) : std::move(texts[0]));
  return json_response(answer);
}

// Long texts take their time: not on the loop.
template <typename Make>
void answer_on_worker(Context& context, ExchangePtr exchange, Make make) {
  auto response = std::make_shared<HttpResponse>();
  context.worker->post(
      [response, make = std::move(make)] { *response = make(); },
      [exchange = std::move(exchange), response](const Status& worked) {
        exchange->respond(worked.ok() ? std::move(*response) : to_response(to_api_error(worked)));
      });
}

}  // namespace

void tokenize(Context& context, HttpRequest request, ExchangePtr exchange) {
  answer_on_worker(context, std::move(exchange),
                   [model = context.model, limit = context.token_limit,
                    body = std::move(request.body)] { return tokenize_body(model, limit, body); });
}

void detokenize(Context& context, HttpRequest request, ExchangePtr exchange) {
  answer_on_worker(context, std::move(exchange),
                   [model = context.model, body = std::move(request.body)] {
                     return detokenize_body(model, body);
                   });
}

}  // namespace attune::server
