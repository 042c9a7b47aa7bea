#include "model/mlp.h"

#include "model/block.h"

namespace attune::model {
namespace {

class Mlp final : public Block {
 public:
  explicit Mlp(const Context& context)
      : c_(context),
        mlp_(context, context.config.intermediate_size),
        layers_(static_cast<size_t>(context.config.num_layers)) {}

  Status load(int32_t index, WeightLoader& loader) override {
    const std::string p = "model.layers." + std::to_string(index) + ".";
    Layer& layer = layers_[index];
    ATTUNE_RETURN_IF_ERROR(loader.vector(p + "post_attention_layernorm.weight", layer.norm));
    return mlp_.load(p + "mlp.", c_.config.mlp_bias, loader, layer.mlp);
  }

  Status allocate(device::Device& device) override { return mlp_.allocate(device); }
  int64_t scratch_bytes() const override { return mlp_.scratch_bytes(); }

  void run(int32_t index, const Step& step, float* hidden, device::Stream& stream) override {
    const Layer& layer = layers_[index];
    const int32_t tokens = step.in.num_tokens;
    c_.norm(hidden, c_.config.hidden_size, layer.norm, c_.config.rms_norm_eps, tokens, step.normed,
            c_.options.act, stream);
    mlp_.run(layer.mlp, step.normed, tokens, hidden, stream);
  }

 private:
  struct Layer {
    Vector norm;
    GatedMlp::Weights mlp;
  };

  const Context& c_;
  GatedMlp mlp_;
  std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Block> make_mlp(const Context& context) {
  return std::make_unique<Mlp>(context);
}

}  // namespace attune::model
