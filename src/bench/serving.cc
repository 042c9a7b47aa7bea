#include "bench/serving.h"

#include <algorithm>

#include "base/log.h"
#include "text/tokenizer.h"

namespace attune::bench {
namespace {

constexpr double kAdminTimeout = 60;      // seconds for /flush_cache and /v1/models
constexpr int32_t kWarmupOutputLen = 32;  // enough to have every step run

Dialect dialect_of(const std::string& backend) {
  if (backend == "openai") return Dialect::kCompletions;
  return backend == "openai-chat" ? Dialect::kChat : Dialect::kGenerate;
}

void write_text(const text::Tokenizer* tokenizer, std::vector<PromptWork>& work) {
  if (!tokenizer) return;
  for (PromptWork& item : work) item.text = tokenizer->decode(item.ids);
}

// The name that the server gives its first model.
Result<std::string> served_model(const HttpTarget& target) {
  ATTUNE_ASSIGN_OR_RETURN(const HttpReply reply,
                          fetch(target, "GET", "/v1/models", "", kAdminTimeout));
  if (reply.status != 200)
    return unavailable(base::cat("GET /v1/models: ", error_message(reply.status, reply.body)));
  auto json = formats::parse_json(reply.body);
  const formats::Json* list = json.ok() ? json->find("data") : nullptr;
  if (list && list->is_array() && !list->as_array().empty()) {
    const formats::Json* id = list->as_array().front().find("id");
    if (id && id->is_string()) return id->as_string();
  }
  return data_loss("GET /v1/models lists no model; name it with --model");
}

Status flush_cache(const HttpTarget& target) {
  ATTUNE_ASSIGN_OR_RETURN(const HttpReply reply,
                          fetch(target, "POST", "/flush_cache", "", kAdminTimeout));
  if (reply.status == 200) return {};
  return unavailable(base::cat("--flush-cache: ", error_message(reply.status, reply.body)));
}

// Prompts of their own, so that the measured ones find nothing of theirs in a prefix cache.
Status warm_up(const ServingConfig& config, const HttpTarget& target, const AskOptions& ask,
               const text::Tokenizer* tokenizer, const PromptWork& like) {
  if (config.warmup_requests == 0) return {};
  std::vector<PromptWork> work(static_cast<size_t>(config.warmup_requests));
  for (size_t i = 0; i < work.size(); ++i) {
    const auto length = static_cast<int32_t>(like.ids.size());
    work[i].ids = warmup_prompt(config.workload, length, i);
    work[i].output_len = std::min(like.output_len, kWarmupOutputLen);
  }
  write_text(tokenizer, work);
  base::log_info("warming up ", config.base_url);
  const LoadOptions load{.idle_timeout_s = config.load.idle_timeout_s};
  ATTUNE_ASSIGN_OR_RETURN(const LoadResult result, run_load(target, ask, std::move(work), load));
  for (const CallRecord& record : result.records) {
    if (!record.ok) {
      return unavailable(
          base::cat("a warm-up request to ", config.base_url, " failed: ", record.error));
    }
  }
  return {};
}

}  // namespace

Result<ServingResult> run_serving(const ServingConfig& config, const text::Tokenizer* tokenizer) {
  ATTUNE_ASSIGN_OR_RETURN(auto work, make_workload(config.workload));
  if (work.empty()) return invalid_argument("--num-prompts: nothing to send");
  if (config.workload.dataset == "multi-turn" && dialect_of(config.backend) != Dialect::kGenerate) {
    return invalid_argument(
        "--dataset-name multi-turn needs the ids of answers, which only /generate tells: use "
        "--backend attune or sglang");
  }
  write_text(tokenizer, work);
  ATTUNE_ASSIGN_OR_RETURN(const HttpTarget target, find_target(config.base_url, config.api_key));

  const bool from_lengths = config.workload.dataset == "lengths-file";
  AskOptions ask{.dialect = dialect_of(config.backend),
                 .model = config.model,
                 .temperature = config.temperature,
                 .stream = !config.disable_stream,
                 .ignore_eos = !config.disable_ignore_eos};
  if (ask.temperature < 0) ask.temperature = from_lengths ? 0.6 : 0.0;
  if (ask.model.empty() && ask.dialect != Dialect::kGenerate) {
    ATTUNE_ASSIGN_OR_RETURN(ask.model, served_model(target));
  }
  ATTUNE_RETURN_IF_ERROR(warm_up(config, target, ask, tokenizer, work.front()));
  if (config.flush_cache) ATTUNE_RETURN_IF_ERROR(flush_cache(target));

  base::log_info("sending ", work.size(), " requests to ", config.base_url);
  ATTUNE_ASSIGN_OR_RETURN(LoadResult load, run_load(target, ask, std::move(work), config.load));
  ServingResult result{.setup = {config.backend, config.workload.dataset, config.load.request_rate,
                                 config.load.max_concurrency},
                       .metrics = measure(load.records, load.duration_s),
                       .records = std::move(load.records)};
  if (result.metrics.completed == 0) {
    return unavailable(base::cat("none of ", result.metrics.failed, " requests to ",
                                 config.base_url,
                                 " was completed; the first: ", result.metrics.first_error));
  }
  return result;
}

}  // namespace attune::bench
