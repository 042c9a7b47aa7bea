#include "cli/sampling.h"

namespace attune::cli {

std::vector<base::Flag> SamplingFlags::flags() {
  const char* group = "Sampling";
  return {
      {"max-new-tokens", &max_new_tokens, group, "N", "most tokens of an answer", {.min = 0}},
      {"temperature",
       &temperature,
       group,
       "X",
       "0: always the likeliest token",
       {.min = 0, .max = 100}},
      {"top-p",
       &top_p,
       group,
       "P",
       "draw from the likeliest tokens that hold this share",
       {.min = 1e-6, .max = 1}},
      {"top-k", &top_k, group, "N", "draw from the N likeliest tokens; -1: all", {.min = -1}},
      {"min-p",
       &min_p,
       group,
       "P",
       "leave out tokens below this share of the likeliest",
       {.min = 0, .max = 1}},
      {"repetition-penalty",
       &repetition_penalty,
       group,
       "X",
       "above 1: fewer tokens that are there already",
       {.min = 0.01, .max = 2}},
      {"presence-penalty",
       &presence_penalty,
       group,
       "X",
       "off the logits of tokens already in the answer",
       {.min = -2, .max = 2}},
      {"frequency-penalty",
       &frequency_penalty,
       group,
       "X",
       "the same for each time a token is there",
       {.min = -2, .max = 2}},
      {"seed",
       &seed,
       group,
       "N",
       "draws depend on it and the position alone; -1: any",
       {.min = -1}},
      {"ignore-eos", &ignore_eos, group, "", "go on after the end of the text"},
      {"stop", &stop, group, "TEXT,...", "end before one of these"},
      {"top-logprobs",
       &top_logprobs,
       group,
       "N",
       "log-probabilities of each token and the N likeliest; -1: none",
       {.min = -1, .max = 100}},
  };
}

server::PromptSpec SamplingFlags::spec(std::vector<TokenId> prompt) const {
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(temperature);
  sampling.top_p = static_cast<float>(top_p);
  sampling.top_k = top_k;
  sampling.min_p = static_cast<float>(min_p);
  sampling.repetition_penalty = static_cast<float>(repetition_penalty);
  sampling.presence_penalty = static_cast<float>(presence_penalty);
  sampling.frequency_penalty = static_cast<float>(frequency_penalty);
  if (seed >= 0) sampling.seed = static_cast<uint64_t>(seed);
  sampling.max_new_tokens = max_new_tokens;
  sampling.ignore_eos = ignore_eos;
  sampling.top_logprobs = top_logprobs;
  return {.ids = std::move(prompt), .sampling = std::move(sampling), .stop = stop};
}

}  // namespace attune::cli
