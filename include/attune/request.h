// What a client of the engine submits and what comes back: plain data, ids and numbers only. Text,
// templates and stop strings belong to the layer above (src/text, src/server).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace attune {

using TokenId = int32_t;
using RequestId = uint64_t;  // unique in one engine's life; given by Engine::submit

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = -1;        // -1: all
  float min_p = 0.0f;        // [0, 1]
  float repetition_penalty =
      1.0f;  // (0, 2]; prompt and output, CTRL paper (arXiv:1909.05858) section 4.1
  float presence_penalty = 0.0f;                      // [-2, 2]; output only, OpenAI API
  float frequency_penalty = 0.0f;                     // [-2, 2]; output only, OpenAI API
  std::vector<std::pair<TokenId, float>> logit_bias;  // added to the logits, before everything else
  std::optional<uint64_t>
      seed;  // a draw depends on (seed, position) only; unset: the engine picks one

  int32_t max_new_tokens = 128;
  int32_t min_new_tokens = 0;  // below it, end-of-sequence and stop ids cannot be drawn
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;  // besides the model's own end-of-sequence ids

  int32_t top_logprobs = -1;  // -1: none; 0: of the chosen token; k > 0: and of the k likeliest
  int32_t prompt_logprob_start =
      -1;  // -1: none; else from this prompt position on (top_logprobs wide)

  bool operator==(const SamplingParams&) const = default;
};

struct Request {
  std::vector<TokenId> prompt;  // at least one id, each in [0, vocabulary)
  SamplingParams sampling;
  int32_t priority = 0;    // higher first; equal ones by arrival
  std::string cache_salt;  // prefixes are shared only between requests of one salt
  std::string label;       // for logs (the HTTP request id)
};

// Natural log of the model's distribution (before temperature and filters).
struct TokenLogprob {
  TokenId token = -1;
  float logprob = 0.0f;
};

struct LogprobEntry {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // likeliest first
};

enum class FinishReason : uint8_t {
  kNone,
  kStop,    // end-of-sequence or a stop id; `matched` says which
  kLength,  // max_new_tokens or the context is full
  kAbort,   // the client left or abort() was called
  kError,   // see `error`
};

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens whose KV was found, in any tier
  int32_t completion_tokens = 0;
};

// A batch of news about one request, in order. The last one has finish != kNone; nothing follows
// it.
struct TokenEvent {
  RequestId request = 0;
  std::vector<TokenId> tokens;         // new ones; a stop token is included
  std::vector<LogprobEntry> logprobs;  // one per token, when asked for
  // Entry i is of prompt position prompt_logprobs_first + i; position 0 has none and is skipped.
  std::vector<LogprobEntry> prompt_logprobs;
  int32_t prompt_logprobs_first = 0;
  Usage usage;  // totals so far
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> matched;
  std::string error;
};

// Where a request's events go. Called on the engine's thread, so it may only enqueue: never block,
// never call the engine.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_event(TokenEvent event) = 0;
};

}  // namespace attune
