#include "sched/request_check.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace attune::sched {
namespace {

std::string text(double v) {
  std::string s = std::to_string(v);
  s.erase(s.find_last_not_of('0') + 1);
  if (s.ends_with('.')) s.pop_back();
  return s;
}

Status out_of_range(const std::string& name, double value, const std::string& range) {
  return invalid_argument(name + " is " + text(value) + ", expected " + range);
}

// Written so that NaN fails.
Status check_floats(const SamplingParams& p) {
  if (!(p.temperature >= 0 && std::isfinite(p.temperature)))
    return out_of_range("temperature", p.temperature, "a finite number >= 0");
  if (!(p.top_p > 0 && p.top_p <= 1)) return out_of_range("top_p", p.top_p, "(0, 1]");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return out_of_range("min_p", p.min_p, "[0, 1]");
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 2))
    return out_of_range("repetition_penalty", p.repetition_penalty, "(0, 2]");
  if (!(std::abs(p.presence_penalty) <= 2))
    return out_of_range("presence_penalty", p.presence_penalty, "[-2, 2]");
  if (!(std::abs(p.frequency_penalty) <= 2))
    return out_of_range("frequency_penalty", p.frequency_penalty, "[-2, 2]");
  for (const auto& [id, bias] : p.logit_bias)
    if (!std::isfinite(bias))
      return out_of_range("logit_bias of token " + std::to_string(id), bias, "a finite number");
  return {};
}

Status check_id(const std::string& name, TokenId id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return out_of_range(name, id, "a token id in [0, " + std::to_string(vocab_size) + ")");
}

Status check_ids(const SchedulerConfig& config, const Request& r) {
  const auto bad =
      std::ranges::find_if(r.prompt, [&](TokenId id) { return id < 0 || id >= config.vocab_size; });
  if (bad != r.prompt.end())
    return check_id("prompt[" + std::to_string(bad - r.prompt.begin()) + "]", *bad,
                    config.vocab_size);
  for (const auto& [id, bias] : r.sampling.logit_bias)
    ATTUNE_RETURN_IF_ERROR(check_id("logit_bias", id, config.vocab_size));
  for (const TokenId id : r.sampling.stop_token_ids)
    ATTUNE_RETURN_IF_ERROR(check_id("stop_token_ids", id, config.vocab_size));
  return {};
}

Status check_counts(const SchedulerConfig& config, const Request& r) {
  const SamplingParams& p = r.sampling;
  if (p.top_k != -1 && p.top_k < 1) return out_of_range("top_k", p.top_k, "-1 (all) or >= 1");
  if (p.max_new_tokens < 0) return out_of_range("max_new_tokens", p.max_new_tokens, ">= 0");
  if (p.min_new_tokens < 0 || p.min_new_tokens > p.max_new_tokens)
    return out_of_range("min_new_tokens", p.min_new_tokens,
                        "[0, max_new_tokens = " + std::to_string(p.max_new_tokens) + "]");
  if (p.top_logprobs < -1 || p.top_logprobs > config.vocab_size)
    return out_of_range("top_logprobs", p.top_logprobs,
                        "-1 (none) or [0, " + std::to_string(config.vocab_size) + "]");
  const auto prompt = static_cast<int32_t>(r.prompt.size());
  if (p.prompt_logprob_start < -1 || p.prompt_logprob_start > prompt)
    return out_of_range(
        "prompt_logprob_start", p.prompt_logprob_start,
        "-1 (none) or a position of the prompt, [0, " + std::to_string(prompt) + "]");
  return {};
}

Status check_length(const SchedulerConfig& config, int64_t pool_tokens, const Request& r) {
  if (r.prompt.empty()) return invalid_argument("prompt is empty, expected at least one token");
  const auto prompt = static_cast<int64_t>(r.prompt.size());
  const int64_t wanted = r.sampling.max_new_tokens, limit = context_limit(config, pool_tokens);
  const std::string source =
      config.max_model_len <= pool_tokens
          ? "the model's context of " + std::to_string(config.max_model_len) + " tokens"
          : "the KV pool of " + std::to_string(pool_tokens) + " tokens";
  if (prompt + std::min<int64_t>(wanted, 1) > limit)
    return invalid_argument("prompt has " + std::to_string(prompt) +
                            " tokens and leaves no room for output in " + source);
  if (prompt + wanted > limit && !config.clamp_over_length)
    return invalid_argument("prompt of " + std::to_string(prompt) +
                            " tokens and max_new_tokens of " + std::to_string(wanted) + " exceed " +
                            source);
  return {};
}

}  // namespace

int32_t context_limit(const SchedulerConfig& config, int64_t pool_tokens) {
  return static_cast<int32_t>(std::min<int64_t>(config.max_model_len, pool_tokens));
}

Status check_request(const SchedulerConfig& config, int64_t pool_tokens, const Request& request) {
  ATTUNE_RETURN_IF_ERROR(check_length(config, pool_tokens, request));
  ATTUNE_RETURN_IF_ERROR(check_ids(config, request));
  ATTUNE_RETURN_IF_ERROR(check_counts(config, request));
  return check_floats(request.sampling);
}

}  // namespace attune::sched
