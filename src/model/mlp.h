// The gated MLP: a layer's own, or the experts that all tokens share.
#pragma once

#include "model/linear.h"

namespace attune::model {

class GatedMlp {
 public:
  struct Weights {
    Linear gate_up, down;
  };

  GatedMlp(const Context& context, int64_t intermediate)
      : c_(context), intermediate_(intermediate) {}

  // `prefix` is up to "gate_proj".
  Status load(const std::string& prefix, bool bias, WeightLoader& loader, Weights& to) const {
    ATTUNE_RETURN_IF_ERROR(
        loader.linear(prefix, {"gate_proj", "up_proj"}, bias, c_.options.act, to.gate_up));
    return loader.linear(prefix, {"down_proj"}, bias, c_.options.act, to.down);
  }
  Status allocate(device::Device& device) {
    const int64_t t = c_.options.max_tokens;
    return model::allocate(
        {{gate_up_, t * 2 * intermediate_ * c_.inter_bytes(), "gate and up products"},
         {act_, t * intermediate_ * c_.act_bytes(), "gated activations"}},
        device);
  }
  int64_t scratch_bytes() const { return gate_up_.bytes() + act_.bytes(); }

  // out[tokens, hidden] += mlp(x[tokens, hidden])
  void run(const Weights& w, const void* x, int32_t tokens, float* out,
           device::Stream& stream) const {
    const int64_t hidden = c_.config.hidden_size;
    c_.apply(w.gate_up, x, hidden, tokens, gate_up_.data(), c_.options.inter, 2 * intermediate_,
             stream);
    c_.ops->silu_mul({.gate_up = gate_up_.data(),
                      .x_dtype = c_.options.inter,
                      .ldx = 2 * intermediate_,
                      .rows = tokens,
                      .n = static_cast<int32_t>(intermediate_),
                      .out = act_.data(),
                      .ldo = intermediate_,
                      .out_dtype = c_.options.act},
                     stream);
    c_.add(w.down, act_.data(), intermediate_, tokens, out, hidden, stream);
  }

 private:
  const Context& c_;
  const int64_t intermediate_;
  device::Buffer gate_up_, act_;
};

}  // namespace attune::model
