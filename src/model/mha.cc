// Attention with keys and values of their own: MHA, GQA, MQA.
#include "model/block.h"

namespace attune::model {
namespace {

using tensor::DType;

class Mha final : public Block {
 public:
  explicit Mha(const Context& context)
      : c_(context), layers_(static_cast<size_t>(context.config.num_layers)) {}

  Status load(int32_t index, WeightLoader& loader) override {
    const formats::ModelConfig& m = c_.config;
    Layer& layer = layers_[index];
    const std::string p = "model.layers." + std::to_string(index) + ".";
    layer.window = m.windows.empty() ? 0 : m.windows[index];
    ATTUNE_RETURN_IF_ERROR(loader.vector(p + "input_layernorm.weight", layer.norm));
    if (m.qk_norm) {
      ATTUNE_RETURN_IF_ERROR(loader.vector(p + "self_attn.q_norm.weight", layer.q_norm));
      ATTUNE_RETURN_IF_ERROR(loader.vector(p + "self_attn.k_norm.weight", layer.k_norm));
    }
    ATTUNE_RETURN_IF_ERROR(loader.linear(p + "self_attn.", {"q_proj", "k_proj", "v_proj"},
                                         m.qkv_bias, c_.options.act, layer.qkv));
    return loader.linear(p + "self_attn.", {"o_proj"}, m.o_bias, c_.options.act, layer.o);
  }

  Status allocate(device::Device& device) override {
    const int64_t t = c_.options.max_tokens;
    return model::allocate({{qkv_, t * qkv_width() * c_.inter_bytes(), "q, k and v"},
                            {q_, t * q_width() * c_.inter_bytes(), "queries"},
                            {attn_, t * o_width() * c_.act_bytes(), "attention outputs"}},
                           device);
  }

  int64_t scratch_bytes() const override { return qkv_.bytes() + q_.bytes() + attn_.bytes(); }

  void run(int32_t index, const Step& step, float* hidden, device::Stream& stream) override {
    const formats::ModelConfig& m = c_.config;
    const Layer& layer = layers_[index];
    const kv::PagedKvView& kv = step.in.kv[index];
    const int32_t tokens = step.in.num_tokens;
    c_.norm(hidden, m.hidden_size, layer.norm, m.rms_norm_eps, tokens, step.normed, c_.options.act,
            stream);
    c_.apply(layer.qkv, step.normed, m.hidden_size, tokens, qkv_.data(), c_.options.inter,
             qkv_width(), stream);
    append(layer, step, kv, stream);
    const attention::LayerParams params{.q_heads = m.num_heads,
                                        .kv_heads = m.num_kv_heads,
                                        .scale = static_cast<float>(m.attention_scale),
                                        .window = layer.window,
                                        .soft_cap = static_cast<float>(m.attn_logit_softcap)};
    for (const AttentionGroup& group : step.in.groups) {
      const attention::Io io{
          .q = q_.as<char>() + group.first_token * q_width() * c_.inter_bytes(),
          .q_dtype = c_.options.inter,
          .q_stride = q_width(),
          .out = attn_.as<char>() + group.first_token * o_width() * c_.act_bytes(),
          .out_dtype = c_.options.act,
          .out_stride = o_width()};
      group.backend->run(*group.plan, params, kv, io, stream);
    }
    c_.add(layer.o, attn_.data(), o_width(), tokens, hidden, m.hidden_size, stream);
  }

 private:
  struct Layer {
    Vector norm, q_norm, k_norm;
    Linear qkv, o;
    int32_t window = 0;
  };

  void append(const Layer& layer, const Step& step, const kv::PagedKvView& kv,
              device::Stream& stream) const {
    const formats::ModelConfig& m = c_.config;
    c_.ops->rope_append({.qkv = qkv_.data(),
                         .dtype = c_.options.inter,
                         .ldqkv = qkv_width(),
                         .tokens = step.in.num_tokens,
                         .q_heads = m.num_heads,
                         .kv_heads = m.num_kv_heads,
                         .head_dim = m.head_dim,
                         .rot_dim = m.rope.dim,
                         .style = c_.rope_style(),
                         .cos = step.cos,
                         .sin = step.sin,
                         .q_norm = layer.q_norm.data(),
                         .k_norm = layer.k_norm.data(),
                         .norm_eps = static_cast<float>(m.rms_norm_eps),
                         .q_out = q_.data(),
                         .slot_mapping = step.in.slot_mapping,
                         .kv_base = kv.base,
                         .kv_dtype = kv.dtype,
                         .page_stride = kv.page_stride,
                         .head_stride = kv.k_head_stride,
                         .token_stride = kv.k_token_stride,
                         .v_offset = kv.v_offset,
                         .page_size = kv.page_size,
                         .clear_rest = c_.options.clear_pages},
                        stream);
  }

  int64_t q_width() const { return int64_t{c_.config.num_heads} * c_.config.head_dim; }
  int64_t o_width() const { return int64_t{c_.config.num_heads} * c_.config.v_head_dim; }
  int64_t qkv_width() const {
    return q_width() +
           int64_t{c_.config.num_kv_heads} * (c_.config.head_dim + c_.config.v_head_dim);
  }

  const Context& c_;
  std::vector<Layer> layers_;
  device::Buffer qkv_, q_, attn_;
};

}  // namespace

std::unique_ptr<Block> make_mha(const Context& context) {
  return std::make_unique<Mha>(context);
}

}  // namespace attune::model
