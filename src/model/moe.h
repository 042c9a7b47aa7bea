// Routed experts beside shared ones. Tokens are ordered by expert, so that each expert's weights
// pass once for all of its tokens.
#pragma once

#include "model/block.h"
#include "model/mlp.h"

namespace attune::model {

class Moe final : public Block {
 public:
  explicit Moe(const Context& context);

  Status load(int32_t index, WeightLoader& loader) override;
  Status allocate(device::Device& device) override;
  int64_t scratch_bytes() const override;
  void run(int32_t index, const Step& step, float* hidden, device::Stream& stream) override;

 private:
  struct Layer {
    Vector norm, bias;
    Linear router;
    std::vector<GatedMlp::Weights> experts;
    GatedMlp::Weights shared;
  };

  void route(const Layer& layer, const Step& step, const float* hidden, device::Stream& stream);
  void run_experts(const Layer& layer, const Step& step, float* hidden, device::Stream& stream);
  // One product per expert that has rows, all at once.
  void expert_products(const Layer& layer, Linear GatedMlp::Weights::*which, const void* x,
                       int64_t inputs, float* y, int64_t outputs, device::Stream& stream);

  const Context& c_;
  const formats::MoeConfig& m_;
  GatedMlp shared_;
  std::vector<Layer> layers_;
  std::vector<ops::LinearParams> items_;
  // Routing, per token; then rows ordered by expert, tokens * experts_per_token of them.
  device::Buffer exact_, logits_, ids_, weights_, row_of_pair_;
  device::Buffer offsets_, token_of_row_, x_, gate_up_, act_, y_;
};

}  // namespace attune::model
