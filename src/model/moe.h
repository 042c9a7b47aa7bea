// Routed experts beside shared ones. Tokens are ordered by expert, so that each expert's weights
// pass once for all of its tokens.
#pragma once

#include "model/block.h"
#include "model/mlp.h"

namespace attune::model {

// A linear layer of each expert: one of `parts` for each that a Linear has.
struct ExpertLinear {
  struct Part {
    ops::ExpertWeights weights;
    int32_t first_row = 0;
  };
  std::vector<Part> parts;
};

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
    ExpertLinear gate_up, down;  // of all experts
    GatedMlp::Weights shared;
  };

  void route(const Layer& layer, const Step& step, const float* hidden, device::Stream& stream);
  void run_experts(const Layer& layer, const Step& step, float* hidden, device::Stream& stream);
  // Each expert's product with its rows.
  void expert_products(const ExpertLinear& linear, const void* x, int64_t inputs, int32_t rows,
                       void* y, tensor::DType y_dtype, int64_t outputs, device::Stream& stream);

  const Context& c_;
  const formats::MoeConfig& m_;
  GatedMlp shared_;
  std::vector<Layer> layers_;
  // Routing, per token; then rows ordered by expert, tokens * experts_per_token of them.
  device::Buffer exact_, logits_, ids_, weights_, row_of_pair_;
  device::Buffer offsets_, token_of_row_, x_, gate_up_, act_, y_;
};

}  // namespace attune::model
