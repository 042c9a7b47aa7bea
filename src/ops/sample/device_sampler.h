// Sampling where the logits are: nothing waits for the host. The rules are the Sampler's
// (ops/sample/sample.h): the same draw from the same logits, but where the rounding of cumulated
// probabilities decides.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "attune/request.h"
#include "attune/status.h"
#include "device/device.h"

namespace attune::ops {

// What a row gave, as the device writes it.
struct SampledRow {
  static constexpr int32_t kMaxTop = 20;
  int32_t token;  // -1: the logits are not finite, nothing can be drawn
  float logprob;  // of the token, when the place asks for log-probabilities
  int32_t num_top;
  int32_t top_tokens[kMaxTop];  // likeliest first
  float top_logprobs[kMaxTop];
};

// The sampling state of every place: parameters, last token, penalty counts. Calls on the engine's
// thread; the work on the stream of the call.
class DeviceSampler {
 public:
  struct Config {
    int32_t max_places = 0, max_rows = 0, vocab = 0;
  };
  virtual ~DeviceSampler() = default;

  // A sequence enters `place`. `forbidden_early`: ids that cannot be drawn before min_new_tokens.
  // Errors: resource_exhausted for more top log-probabilities, biases or forbidden ids than a place
  // has room for.
  virtual Status admit(int32_t place, const SamplingParams& sampling,
                       std::span<const TokenId> forbidden_early, std::span<const TokenId> history,
                       int32_t prompt_tokens, device::Stream& stream) = 0;
  // ids[i] < 0 becomes the last token of place -1 - ids[i]. May be captured, as may sample().
  virtual void fill_ids(int32_t* ids, int32_t count, device::Stream& stream) = 0;
  // Draws the next token of row i's place, places[i], which will be at positions[i]; place -1: a
  // row that only fills the batch up. All arrays are the device's. Overwrites the logits [n,
  // vocab].
  virtual void sample(const int32_t* places, const int32_t* positions, float* logits, int32_t n,
                      device::Stream& stream) = 0;
  // Of the rows of the last sample(), on the device. [max_rows]
  virtual const SampledRow* results() const = 0;
  // Log-probabilities of ids [n] under softmax(logits [n, vocab]), and of the `top` likeliest.
  virtual void logprobs(const int32_t* ids, const float* logits, int32_t n, int32_t top,
                        SampledRow* out, device::Stream& stream) = 0;
  virtual int64_t bytes() const = 0;
};

// Errors: resource_exhausted; unsupported on a CPU.
Result<std::unique_ptr<DeviceSampler>> create_device_sampler(const DeviceSampler::Config& config,
                                                             device::Device& device);

}  // namespace attune::ops
