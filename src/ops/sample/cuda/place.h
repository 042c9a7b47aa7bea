// What the device keeps of a sequence between steps.
#pragma once

#include <cstdint>

namespace attune::ops::cuda {

constexpr int32_t kMaxBias = 512;      // entries of a place's logit_bias
constexpr int32_t kMaxForbidden = 64;  // ids forbidden before min_new_tokens

struct Place {
  float temperature, top_p, min_p;
  float repetition, presence, frequency;
  int32_t top_k;
  int32_t top_logprobs;  // -1: none
  uint64_t seed;
  int32_t min_new_tokens;
  int32_t output_tokens;  // so far; the kernel counts on
  int32_t num_bias, num_forbidden;
  int32_t penalised;  // whether the place's counts are used
  int32_t bias_ids[kMaxBias];
  float bias[kMaxBias];
  int32_t forbidden[kMaxForbidden];
};

// A token's word in a place's counts: whether the prompt has it, and how often the output.
constexpr uint32_t kInPrompt = 1u << 31;

}  // namespace attune::ops::cuda
