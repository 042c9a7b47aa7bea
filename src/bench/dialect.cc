#include "bench/dialect.h"

#include <algorithm>

#include "base/log.h"
#include "base/quote.h"

namespace attune::bench {
namespace {

using formats::Json;

Json number_array(const std::vector<TokenId>& ids) {
  return Json::Array(ids.begin(), ids.end());
}

const Json* member(const Json* json, std::string_view key) {
  return json ? json->find(key) : nullptr;
}

int32_t count_in(const Json* json, std::string_view key, int32_t otherwise) {
  const Json* value = member(json, key);
  return value && value->is_int() ? static_cast<int32_t>(value->as_int()) : otherwise;
}

std::string_view text_in(const Json* json, std::string_view key) {
  const Json* value = member(json, key);
  return value && value->is_string() ? std::string_view(value->as_string()) : std::string_view();
}

// The message of {"error": {"message": ...}}, {"error": "..."}, {"message": ...} or {"detail":
// ...}.
std::string_view stated_error(const Json& json) {
  for (std::string_view text : {text_in(json.find("error"), "message"), text_in(&json, "error"),
                                text_in(&json, "message"), text_in(&json, "detail")}) {
    if (!text.empty()) return text;
  }
  return {};
}

Status unexpected(std::string_view data) {
  return data_loss(base::cat("the server's answer is in no known form: ",
                             base::json_quote(data.substr(0, 200))));
}

Json openai_body(const AskOptions& options) {
  Json body;
  body.set("model", options.model);
  body.set("temperature", options.temperature);
  body.set("stream", options.stream);
  if (options.stream) body.set("stream_options", Json::Object{{"include_usage", true}});
  if (options.ignore_eos) body.set("ignore_eos", true);
  return body;
}

}  // namespace

const char* request_path(Dialect dialect) {
  switch (dialect) {
    case Dialect::kGenerate:
      return "/generate";
    case Dialect::kCompletions:
      return "/v1/completions";
    case Dialect::kChat:
      return "/v1/chat/completions";
  }
  return "";
}

std::string request_body(const AskOptions& options, const PromptWork& work) {
  if (options.dialect == Dialect::kGenerate) {
    Json sampling;
    sampling.set("temperature", options.temperature);
    sampling.set("max_new_tokens", work.output_len);
    sampling.set("ignore_eos", options.ignore_eos);
    Json body;
    body.set("input_ids", number_array(work.ids));
    body.set("sampling_params", std::move(sampling));
    body.set("stream", options.stream);
    return body.dump();
  }
  Json body = openai_body(options);
  body.set("max_tokens", work.output_len);
  if (options.dialect == Dialect::kCompletions) {
    body.set("prompt", number_array(work.ids));
  } else {
    body.set("messages", Json::Array{Json::Object{{"role", "user"}, {"content", work.text}}});
  }
  return body.dump();
}

AnswerReader::AnswerReader(const AskOptions& options, const PromptWork& work, double start)
    : dialect_(options.dialect), start_(start) {
  record_.prompt_len = static_cast<int32_t>(work.ids.size());
  record_.turn = work.turn;
}

// `count` tokens that came together. The first token's time is TTFT and never an interval; those
// that came with it followed at once. Later ones share the time since the last.
void AnswerReader::add_tokens(int32_t count, double now) {
  if (count <= 0) return;
  double gap = 0;
  if (events_ == 0) {
    record_.ttft = now - start_;
    record_.itl.assign(static_cast<size_t>(count - 1), 0.0);
  } else {
    gap = (now - last_) / count;
    record_.itl.insert(record_.itl.end(), static_cast<size_t>(count), gap);
  }
  events_ += count;
  last_ = now;
}

Status AnswerReader::on_event(std::string_view data, double now) {
  if (data == "[DONE]") {
    finished_ = true;
    return {};
  }
  auto json = formats::parse_json(data);
  if (!json.ok() || !json->is_object()) return unexpected(data);
  const std::string_view error = stated_error(*json);
  if (!error.empty()) return internal_error(base::cat("the server says: ", error));
  Status status = dialect_ == Dialect::kGenerate ? on_generate(*json, now) : on_choice(*json, now);
  return status.ok() ? status : unexpected(data);
}

Status AnswerReader::on_generate(const Json& json, double now) {
  const Json* meta = json.find("meta_info");
  const int32_t total = count_in(meta, "completion_tokens", -1);
  if (total < 0) return data_loss("no meta_info.completion_tokens");
  add_tokens(total - events_, now);
  counted_ = true;
  record_.output_len = total;
  record_.prompt_len = count_in(meta, "prompt_tokens", record_.prompt_len);
  record_.cached_len = count_in(meta, "cached_tokens", record_.cached_len);
  record_.text = text_in(&json, "text");  // each event has the text so far
  read_ids(json);
  const Json* reason = member(meta, "finish_reason");
  if (reason && !reason->is_null()) finished_ = true;
  if (text_in(reason, "type") == "abort") return data_loss("aborted");
  return {};
}

Status AnswerReader::on_choice(const Json& json, double now) {
  const Json* usage = json.find("usage");
  const Json* choices = json.find("choices");
  if (!choices || !choices->is_array()) return data_loss("no choices");
  if (!choices->as_array().empty()) {
    const Json* choice = &choices->as_array().front();
    const Json* delta = member(choice, dialect_ == Dialect::kChat ? "delta" : "");
    std::string_view text = delta ? text_in(delta, "content") : text_in(choice, "text");
    const std::string_view thought = text_in(delta, "reasoning_content");
    if (!text.empty() || !thought.empty()) add_tokens(1, now);
    record_.text += thought;
    record_.text += text;
    const Json* reason = member(choice, "finish_reason");
    if (reason && !reason->is_null()) {
      finished_ = true;
      record_.latency = now - start_;
    }
  }
  if (usage && usage->is_object()) read_usage(*usage);
  return {};
}

// The ids so far, or, as SGLang's servers can be set, those of this event alone.
void AnswerReader::read_ids(const Json& json) {
  const Json* list = json.find("output_ids");
  if (!list || !list->is_array()) return;
  const auto& ids = list->as_array();
  if (ids.size() >= static_cast<size_t>(record_.output_len)) record_.ids.clear();
  for (const Json& id : ids) {
    if (id.is_int()) record_.ids.push_back(static_cast<TokenId>(id.as_int()));
  }
}

void AnswerReader::read_usage(const Json& usage) {
  record_.prompt_len = count_in(&usage, "prompt_tokens", record_.prompt_len);
  const int32_t total = count_in(&usage, "completion_tokens", -1);
  if (total >= 0) {
    counted_ = true;
    record_.output_len = total;
  }
  record_.cached_len = count_in(usage.find("prompt_tokens_details"), "cached_tokens", 0);
}

Status AnswerReader::on_body(std::string_view body, double now) {
  auto json = formats::parse_json(body);
  if (!json.ok() || !json->is_object()) return unexpected(body);
  record_.latency = now - start_;
  finished_ = true;
  if (dialect_ == Dialect::kGenerate) {
    const Json* meta = json->find("meta_info");
    if (!meta) return unexpected(body);
    record_.text = text_in(&*json, "text");
    read_usage(*meta);
    read_ids(*json);
    record_.cached_len = count_in(meta, "cached_tokens", 0);
  } else {
    const Json* choices = json->find("choices");
    if (!choices || !choices->is_array() || choices->as_array().empty()) return unexpected(body);
    const Json* choice = &choices->as_array().front();
    record_.text = dialect_ == Dialect::kChat ? text_in(choice->find("message"), "content")
                                              : text_in(choice, "text");
    if (const Json* usage = json->find("usage")) read_usage(*usage);
  }
  return counted_ ? Status() : unexpected(body);
}

Result<CallRecord> AnswerReader::finish() {
  if (!finished_) return data_loss("the stream ended before the answer did");
  if (!counted_) record_.output_len = events_;
  if (record_.output_len == 0) return data_loss("the server generated no token");
  if (events_ > 0) record_.latency = std::max(record_.latency, last_ - start_);
  record_.ok = true;
  return std::move(record_);
}

std::string error_message(int status, std::string_view body) {
  auto json = formats::parse_json(body);
  const std::string_view stated = json.ok() && json->is_object() ? stated_error(*json) : "";
  const std::string_view shown = stated.empty() ? body.substr(0, 300) : stated;
  return base::cat("HTTP status ", status, shown.empty() ? "" : ": ", shown);
}

}  // namespace attune::bench
