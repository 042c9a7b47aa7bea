// Half a layer: attention or MLP, of all layers of one kind. It owns their weights and its scratch.
#pragma once

#include <memory>

#include "model/forward.h"
#include "model/linear.h"

namespace attune::model {

// One step, as all layers see it.
struct Step {
  const ForwardInput& in;
  const float* cos;  // [num_tokens, rope.dim/2]
  const float* sin;
  void* normed;  // scratch [max_tokens, hidden], activation type
};

class Block {
 public:
  virtual ~Block() = default;
  // Errors: WeightLoader's.
  virtual Status load(int32_t layer, WeightLoader& loader) = 0;
  // After the layers are loaded. Errors: resource_exhausted.
  virtual Status allocate(device::Device& device) = 0;
  virtual int64_t scratch_bytes() const = 0;
  // hidden[num_tokens, hidden_size] += f(norm(hidden)). Inside Stream::launch. REQUIRES: `layer`
  // was loaded.
  virtual void run(int32_t layer, const Step& step, float* hidden, device::Stream& stream) = 0;
};

std::unique_ptr<Block> make_mha(const Context& context);  // mha.cc
std::unique_ptr<Block> make_mla(const Context& context);  // mla.cc
std::unique_ptr<Block> make_mlp(const Context& context);  // mlp.cc
std::unique_ptr<Block> make_moe(const Context& context);  // moe.cc

}  // namespace attune::model
