// The sampling flags of generate and chat.
#pragma once

#include <string>
#include <vector>

#include "base/flags.h"
#include "server/completion.h"

namespace attune::cli {

struct SamplingFlags {
  int32_t max_new_tokens = 128, top_k = -1, top_logprobs = -1;
  double temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1, presence_penalty = 0,
         frequency_penalty = 0;
  int64_t seed = -1;  // -1: the engine picks one
  bool ignore_eos = false;
  std::vector<std::string> stop;

  // The rows, bound to this, which must outlive them.
  std::vector<base::Flag> flags();
  // `prompt` sampled so.
  server::PromptSpec spec(std::vector<TokenId> prompt) const;
};

}  // namespace attune::cli
