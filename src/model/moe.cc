#include "model/moe.h"

namespace attune::model {

using tensor::DType;

namespace {

Status gather(const std::vector<GatedMlp::Weights>& experts, Linear GatedMlp::Weights::*which,
              WeightLoader& loader, ExpertLinear& out) {
  const std::vector<Linear::Part>& head = (experts[0].*which).parts;
  for (size_t i = 0; i < head.size(); ++i) {
    std::vector<const ops::PackedWeight*> weights;
    for (const GatedMlp::Weights& expert : experts) {
      const std::vector<Linear::Part>& parts = (expert.*which).parts;
      if (parts.size() != head.size() || parts[i].first_row != head[i].first_row)
        return unsupported("experts of one layer whose weights are of different types");
      weights.push_back(&parts[i].weight);
    }
    ATTUNE_ASSIGN_OR_RETURN(ops::ExpertWeights gathered, loader.gather(std::move(weights)));
    out.parts.push_back({std::move(gathered), head[i].first_row});
  }
  return {};
}

}  // namespace

Moe::Moe(const Context& context)
    : c_(context),
      m_(context.config.moe),
      shared_(context, int64_t{m_.shared_experts} * m_.intermediate_size),
      layers_(static_cast<size_t>(context.config.num_layers)) {}

Status Moe::load(int32_t index, WeightLoader& loader) {
  const std::string p = "model.layers." + std::to_string(index) + ".";
  Layer& layer = layers_[index];
  ATTUNE_RETURN_IF_ERROR(loader.vector(p + "post_attention_layernorm.weight", layer.norm));
  // The router is float32 whatever the activations are: near ties decide which experts are seen.
  ATTUNE_RETURN_IF_ERROR(loader.linear(p + "mlp.", {"gate"}, false, DType::kF32, layer.router));
  if (m_.correction_bias)
    ATTUNE_RETURN_IF_ERROR(loader.vector(p + "mlp.gate.e_score_correction_bias", layer.bias));
  layer.experts.resize(static_cast<size_t>(m_.num_experts));
  for (int32_t e = 0; e < m_.num_experts; ++e)
    ATTUNE_RETURN_IF_ERROR(shared_.load(p + "mlp.experts." + std::to_string(e) + ".", false, loader,
                                        layer.experts[e]));
  ATTUNE_RETURN_IF_ERROR(gather(layer.experts, &GatedMlp::Weights::gate_up, loader, layer.gate_up));
  ATTUNE_RETURN_IF_ERROR(gather(layer.experts, &GatedMlp::Weights::down, loader, layer.down));
  if (m_.shared_experts == 0) return {};
  return shared_.load(p + "mlp.shared_experts.", false, loader, layer.shared);
}

Status Moe::allocate(device::Device& device) {
  const int64_t t = c_.options.max_tokens, rows = t * m_.experts_per_token;
  const int64_t h = c_.config.hidden_size, inter = m_.intermediate_size, act = c_.act_bytes();
  if (m_.shared_experts > 0) ATTUNE_RETURN_IF_ERROR(shared_.allocate(device));
  if (c_.options.act != DType::kF32)
    ATTUNE_RETURN_IF_ERROR(model::allocate({{exact_, t * h * 4, "the router's inputs"}}, device));
  return model::allocate(
      {{logits_, t * m_.num_experts * 4, "experts' logits"},
       {ids_, rows * 4, "chosen experts"},
       {weights_, rows * 4, "experts' weights"},
       {row_of_pair_, rows * 4, "rows of pairs"},
       {offsets_, (m_.num_experts + int64_t{1}) * 4, "experts' rows"},
       {token_of_row_, rows * 4, "tokens of rows"},
       {x_, rows * h * act, "experts' inputs"},
       {gate_up_, rows * 2 * inter * c_.inter_bytes(), "experts' gate and up products"},
       {act_, rows * inter * act, "experts' gated activations"},
       {y_, rows * h * 4, "experts' outputs"}},
      device);
}

int64_t Moe::scratch_bytes() const {
  int64_t sum = shared_.scratch_bytes();
  for (const device::Buffer* b : {&exact_, &logits_, &ids_, &weights_, &row_of_pair_, &offsets_,
                                  &token_of_row_, &x_, &gate_up_, &act_, &y_})
    sum += b->bytes();
  return sum;
}

void Moe::run(int32_t index, const Step& step, float* hidden, device::Stream& stream) {
  const Layer& layer = layers_[index];
  c_.norm(hidden, c_.config.hidden_size, layer.norm, c_.config.rms_norm_eps, step.in.num_tokens,
          step.normed, c_.options.act, stream);
  route(layer, step, hidden, stream);
  run_experts(layer, step, hidden, stream);
  if (m_.shared_experts > 0)
    shared_.run(layer.shared, step.normed, step.in.num_tokens, hidden, stream);
}

void Moe::route(const Layer& layer, const Step& step, const float* hidden, device::Stream& stream) {
  const int32_t tokens = step.in.num_tokens, h = c_.config.hidden_size;
  const void* x = step.normed;
  if (c_.options.act != DType::kF32) {
    c_.norm(hidden, h, layer.norm, c_.config.rms_norm_eps, tokens, exact_.data(), DType::kF32,
            stream);
    x = exact_.data();
  }
  c_.apply(layer.router, x, h, tokens, logits_.data(), DType::kF32, m_.num_experts, stream);
  c_.ops->moe_route({.logits = logits_.as<float>(),
                     .tokens = tokens,
                     .experts = m_.num_experts,
                     .top_k = m_.experts_per_token,
                     .sigmoid = m_.sigmoid,
                     .bias = layer.bias.data(),
                     .groups = m_.num_groups,
                     .top_groups = m_.groups_per_token,
                     .group_top2 = m_.group_top2,
                     .normalize = m_.normalize,
                     .scale = static_cast<float>(m_.routed_scale),
                     .ids = ids_.as<int32_t>(),
                     .weights = weights_.as<float>()},
                    stream);
}

void Moe::run_experts(const Layer& layer, const Step& step, float* hidden, device::Stream& stream) {
  const int32_t tokens = step.in.num_tokens, rows = tokens * m_.experts_per_token;
  const int64_t h = c_.config.hidden_size, inter = m_.intermediate_size;
  c_.ops->moe_sort({.ids = ids_.as<int32_t>(),
                    .tokens = tokens,
                    .top_k = m_.experts_per_token,
                    .experts = m_.num_experts,
                    .offsets = offsets_.as<int32_t>(),
                    .token_of_row = token_of_row_.as<int32_t>(),
                    .row_of_pair = row_of_pair_.as<int32_t>()},
                   stream);
  c_.ops->copy_rows({.x = step.normed,
                     .ldx = h * c_.act_bytes(),
                     .rows = token_of_row_.as<int32_t>(),
                     .count = rows,
                     .row_bytes = h * c_.act_bytes(),
                     .out = x_.data()},
                    stream);
  expert_products(layer.gate_up, x_.data(), h, rows, gate_up_.data(), c_.options.inter, 2 * inter,
                  stream);
  c_.ops->silu_mul({.gate_up = gate_up_.data(),
                    .x_dtype = c_.options.inter,
                    .ldx = 2 * inter,
                    .rows = rows,
                    .n = static_cast<int32_t>(inter),
                    .out = act_.data(),
                    .ldo = inter,
                    .out_dtype = c_.options.act},
                   stream);
  expert_products(layer.down, act_.data(), inter, rows, y_.data(), DType::kF32, h, stream);
  c_.ops->moe_combine({.y = y_.as<float>(),
                       .row_of_pair = row_of_pair_.as<int32_t>(),
                       .weights = weights_.as<float>(),
                       .tokens = tokens,
                       .top_k = m_.experts_per_token,
                       .n = static_cast<int32_t>(h),
                       .out = hidden,
                       .ldo = h},
                      stream);
}

void Moe::expert_products(const ExpertLinear& linear, const void* x, int64_t inputs, int32_t rows,
                          void* y, DType y_dtype, int64_t outputs, device::Stream& stream) {
  for (const ExpertLinear::Part& part : linear.parts)
    c_.ops->expert_linear(
        {.x = x,
         .x_dtype = c_.options.act,
         .ldx = inputs,
         .rows = rows,
         .offsets = offsets_.as<int32_t>(),
         .weights = &part.weights,
         .y = static_cast<char*>(y) + part.first_row * tensor::dtype_bytes(y_dtype, 1),
         .y_dtype = y_dtype,
         .ldy = outputs,
         .deterministic = c_.options.deterministic},
        stream);
}

std::unique_ptr<Block> make_moe(const Context& context) {
  return std::make_unique<Moe>(context);
}

}  // namespace attune::model
