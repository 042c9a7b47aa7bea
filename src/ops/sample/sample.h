// From a row of logits to the next token. The order is that of Hugging Face's logits processors:
// bias, penalties, forbidden ids; then temperature, top-k, top-p, min-p; then the draw.
// Log-probabilities are those of the model itself, before any of it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attune/request.h"

namespace attune::ops {

// How often the sequence has each token: what penalties need. Only kept when a request asks for
// one.
struct TokenCount {
  TokenId token = 0;
  int32_t in_output = 0;
  bool in_prompt = false;
};

struct SampleParams {
  float* logits = nullptr;  // [vocab]; overwritten
  int32_t vocab = 0;
  const SamplingParams* sampling = nullptr;
  uint64_t seed = 0;
  int32_t position = 0;                // of the token to draw; with the seed it fixes the draw
  std::span<const TokenCount> counts;  // may be empty when no penalty is set
  std::span<const TokenId> forbidden;  // cannot be drawn
  int32_t top_logprobs = -1;           // as SamplingParams::top_logprobs
};

struct Sampled {
  TokenId token = -1;  // -1: the logits are not finite, nothing can be drawn
  LogprobEntry logprob;
};

// Reusable memory of one thread.
class Sampler {
 public:
  Sampled sample(const SampleParams& params);

  // The entry of token `chosen` and of the `top` likeliest (>= 0) under softmax(logits).
  static LogprobEntry logprobs(const float* logits, int32_t vocab, TokenId chosen, int32_t top);

 private:
  TokenId draw(const SampleParams& params);

  struct Candidate {
    float p;
    TokenId token;
  };
  std::vector<float> raw_;  // the model's own logits, when bias or penalties change them
  std::vector<float> probs_;
  std::vector<Candidate> candidates_;
};

// Uniform in [0, 1) from (seed, position): Philox4x32-10 (Salmon et al., SC'11), 53 bits.
double philox_uniform(uint64_t seed, uint64_t position);

}  // namespace attune::ops
