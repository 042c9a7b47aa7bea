#include "model/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "formats/dequant.h"

namespace attune::model {

using tensor::DType;
using tensor::TensorView;

class Decoder::Loader {
 public:
  Loader(Decoder& decoder, const formats::WeightSource& weights, device::Device& device,
         device::Stream& stream, const Progress& progress)
      : d_(decoder), weights_(weights), device_(device), stream_(stream), progress_(progress) {}

  Status load() {
    const formats::ModelConfig& c = d_.config_;
    ATTUNE_ASSIGN_OR_RETURN(d_.embedding_, get("model.embed_tokens.weight"));
    for (int32_t i = 0; i < c.num_layers; ++i) ATTUNE_RETURN_IF_ERROR(load_layer(i));
    ATTUNE_RETURN_IF_ERROR(vector("model.norm.weight", d_.final_norm_));
    // A tied head reads the embedding's values; packed apart, since the lookup wants whole rows.
    return linear({c.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"}, {},
                  d_.head_, !c.tie_word_embeddings);
  }

 private:
  Status load_layer(int32_t index) {
    const formats::ModelConfig& c = d_.config_;
    const std::string p = "model.layers." + std::to_string(index) + ".";
    Layer& layer = d_.layers_.emplace_back();
    layer.window = c.windows.empty() ? 0 : c.windows[index];
    ATTUNE_RETURN_IF_ERROR(vector(p + "input_layernorm.weight", layer.input_norm));
    ATTUNE_RETURN_IF_ERROR(vector(p + "post_attention_layernorm.weight", layer.post_norm));
    if (c.qk_norm) {
      ATTUNE_RETURN_IF_ERROR(vector(p + "self_attn.q_norm.weight", layer.q_norm));
      ATTUNE_RETURN_IF_ERROR(vector(p + "self_attn.k_norm.weight", layer.k_norm));
    }
    auto names = [&](std::initializer_list<const char*> stems, const char* what) {
      std::vector<std::string> all;
      for (const char* stem : stems) all.push_back(p + stem + what);
      return all;
    };
    auto load = [&](std::initializer_list<const char*> stems, bool bias, Linear& to) {
      return linear(names(stems, ".weight"),
                    bias ? names(stems, ".bias") : std::vector<std::string>(), to, true);
    };
    ATTUNE_RETURN_IF_ERROR(
        load({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, c.qkv_bias, layer.qkv));
    ATTUNE_RETURN_IF_ERROR(load({"self_attn.o_proj"}, c.o_bias, layer.o));
    ATTUNE_RETURN_IF_ERROR(load({"mlp.gate_proj", "mlp.up_proj"}, c.mlp_bias, layer.gate_up));
    return load({"mlp.down_proj"}, c.mlp_bias, layer.down);
  }

  Result<TensorView> get(const std::string& name) const {
    std::optional<TensorView> view = weights_.find(name);
    if (!view)
      return data_loss("the model has no tensor '" + name + "', which its config asks for");
    return *view;
  }

  Status vector(const std::string& name, std::vector<float>& out) const {
    ATTUNE_ASSIGN_OR_RETURN(const TensorView view, get(name));
    out.resize(view.shape.elems());
    return formats::dequantize(view.dtype, view.data, out);
  }

  // Neighbours of one format become one product; a file that mixes formats (K-quant recipes do)
  // gets parts.
  Status linear(const std::vector<std::string>& names, const std::vector<std::string>& biases,
                Linear& out, bool drop) {
    int32_t row = 0;
    for (size_t i = 0; i < names.size();) {
      std::vector<TensorView> group;
      do {
        ATTUNE_ASSIGN_OR_RETURN(const TensorView view, get(names[i]));
        if (!group.empty() && view.dtype != group[0].dtype) break;
        group.push_back(view);
      } while (++i < names.size());
      auto packed = ops::pack_weight(group, d_.options_.act, device_, stream_);
      if (!packed.ok()) return packed.status().with_context(names[0]);
      const int32_t n = packed->n;
      d_.weight_bytes_ += packed->bytes();
      out.parts.push_back({std::move(packed).value(), row});
      row += n;
      for (const TensorView& view : group) {
        done_ += view.bytes();
        if (drop) weights_.drop(view);
      }
      if (progress_) progress_(std::min(done_, weights_.bytes()), weights_.bytes());
    }
    for (const std::string& name : biases) {
      std::vector<float> one;
      ATTUNE_RETURN_IF_ERROR(vector(name, one));
      out.bias.insert(out.bias.end(), one.begin(), one.end());
    }
    return {};
  }

  Decoder& d_;
  const formats::WeightSource& weights_;
  device::Device& device_;
  device::Stream& stream_;
  const Progress& progress_;
  int64_t done_ = 0;
};

Result<std::unique_ptr<Decoder>> Decoder::load(const formats::ModelConfig& config,
                                               const formats::WeightSource& weights,
                                               const DecoderOptions& options,
                                               device::Device& device, device::Stream& stream,
                                               const ops::OpTable& ops, const Progress& progress) {
  std::unique_ptr<Decoder> d(new Decoder());
  d->config_ = config;
  d->options_ = options;
  d->ops_ = &ops;
  for (double f : formats::inverse_frequencies(config.rope))
    d->inv_freq_.push_back(static_cast<float>(f));
  ATTUNE_RETURN_IF_ERROR(Loader(*d, weights, device, stream, progress).load());

  const int64_t t = options.max_tokens, h = config.hidden_size, inter = config.intermediate_size;
  const int64_t q = int64_t{config.num_heads} * config.head_dim;
  const int64_t o = int64_t{config.num_heads} * config.v_head_dim;
  const int64_t kv = int64_t{config.num_kv_heads} * (config.head_dim + config.v_head_dim);
  const int64_t act = tensor::dtype_bytes(options.act, 1);
  struct Want {
    device::Buffer& buffer;
    int64_t bytes;
    const char* what;
  };
  for (const Want& want :
       {Want{d->hidden_, t * h * 4, "the residual stream"},
        Want{d->normed_, std::max<int64_t>(t, kMaxLogitRows) * h * act, "normed activations"},
        Want{d->qkv_, t * (q + kv) * 4, "q, k and v"}, Want{d->q_, t * q * 4, "queries"},
        Want{d->attn_, t * o * act, "attention outputs"},
        Want{d->gate_up_, t * 2 * inter * 4, "gate and up products"},
        Want{d->act_, t * inter * act, "gated activations"},
        Want{d->cos_, t * config.rope.dim / 2 * 4, "rope cosines"},
        Want{d->sin_, t * config.rope.dim / 2 * 4, "rope sines"},
        Want{d->picked_, kMaxLogitRows * h * 4, "rows of the head"}}) {
    ATTUNE_ASSIGN_OR_RETURN(want.buffer, device.allocate(want.bytes, want.what));
  }
  return d;
}

int64_t Decoder::scratch_bytes() const {
  int64_t sum = 0;
  for (const device::Buffer* b :
       {&hidden_, &normed_, &qkv_, &q_, &attn_, &gate_up_, &act_, &cos_, &sin_, &picked_})
    sum += b->bytes();
  return sum;
}

void Decoder::forward(const ForwardInput& in, device::Stream& stream) {
  ATTUNE_CHECK(in.num_tokens <= options_.max_tokens);
  ops_->embed({.ids = in.ids,
               .tokens = in.num_tokens,
               .table = embedding_.data,
               .table_dtype = embedding_.dtype,
               .hidden = config_.hidden_size,
               .scale = 1.0f,
               .out = hidden_.as<float>()},
              stream);
  ops_->rope_table({.positions = in.positions,
                    .tokens = in.num_tokens,
                    .inv_freq = inv_freq_.data(),
                    .rot_dim = config_.rope.dim,
                    .magnitude = static_cast<float>(config_.rope.attention_factor),
                    .cos = cos_.as<float>(),
                    .sin = sin_.as<float>()},
                   stream);
  for (size_t i = 0; i < layers_.size(); ++i) {
    attention_block(layers_[i], in.kv[i], in, stream);
    mlp_block(layers_[i], in.num_tokens, stream);
  }
}

void Decoder::attention_block(const Layer& layer, const kv::PagedKvView& kv, const ForwardInput& in,
                              device::Stream& stream) {
  const formats::ModelConfig& c = config_;
  const int32_t tokens = in.num_tokens;
  const int64_t qkv_width =
      int64_t{c.num_heads + c.num_kv_heads} * c.head_dim + int64_t{c.num_kv_heads} * c.v_head_dim;
  const int64_t q_width = int64_t{c.num_heads} * c.head_dim;
  const int64_t o_width = int64_t{c.num_heads} * c.v_head_dim;
  norm(hidden_.as<float>(), layer.input_norm, tokens, normed_.data(), options_.act, stream);
  apply(layer.qkv, normed_.data(), c.hidden_size, tokens, qkv_.as<float>(), qkv_width, false,
        stream);
  ops_->rope_append(
      {.qkv = qkv_.as<float>(),
       .ldqkv = qkv_width,
       .tokens = tokens,
       .q_heads = c.num_heads,
       .kv_heads = c.num_kv_heads,
       .head_dim = c.head_dim,
       .rot_dim = c.rope.dim,
       .style = c.rope.style == formats::RopeStyle::kHalf ? ops::RopeStyle::kHalf
                                                          : ops::RopeStyle::kInterleaved,
       .cos = cos_.as<float>(),
       .sin = sin_.as<float>(),
       .q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data(),
       .k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data(),
       .norm_eps = static_cast<float>(c.rms_norm_eps),
       .q_out = q_.as<float>(),
       .slot_mapping = in.slot_mapping,
       .kv_base = kv.base,
       .kv_dtype = kv.dtype,
       .page_stride = kv.page_stride,
       .head_stride = kv.k_head_stride,
       .token_stride = kv.k_token_stride,
       .v_offset = kv.v_offset,
       .page_size = kv.page_size},
      stream);
  const attention::LayerParams params{.q_heads = c.num_heads,
                                      .kv_heads = c.num_kv_heads,
                                      .scale = static_cast<float>(c.attention_scale),
                                      .window = layer.window,
                                      .soft_cap = static_cast<float>(c.attn_logit_softcap)};
  const int64_t act = tensor::dtype_bytes(options_.act, 1);
  for (const AttentionGroup& group : in.groups) {
    const attention::Io io{.q = q_.as<float>() + group.first_token * q_width,
                           .q_dtype = DType::kF32,
                           .q_stride = q_width,
                           .out = attn_.as<char>() + group.first_token * o_width * act,
                           .out_dtype = options_.act,
                           .out_stride = o_width};
    group.backend->run(*group.plan, params, kv, io, stream);
  }
  apply(layer.o, attn_.data(), o_width, tokens, hidden_.as<float>(), c.hidden_size, true, stream);
}

void Decoder::mlp_block(const Layer& layer, int32_t tokens, device::Stream& stream) {
  const int64_t inter = config_.intermediate_size;
  norm(hidden_.as<float>(), layer.post_norm, tokens, normed_.data(), options_.act, stream);
  apply(layer.gate_up, normed_.data(), config_.hidden_size, tokens, gate_up_.as<float>(), 2 * inter,
        false, stream);
  ops_->silu_mul({.gate_up = gate_up_.as<float>(),
                  .ldx = 2 * inter,
                  .rows = tokens,
                  .n = static_cast<int32_t>(inter),
                  .out = act_.data(),
                  .ldo = inter,
                  .out_dtype = options_.act},
                 stream);
  apply(layer.down, act_.data(), inter, tokens, hidden_.as<float>(), config_.hidden_size, true,
        stream);
}

void Decoder::logits(const int32_t* rows, int32_t count, float* out, device::Stream& stream) {
  ATTUNE_CHECK(count <= kMaxLogitRows);
  const int32_t h = config_.hidden_size;
  ops_->gather_rows({.x = hidden_.as<float>(),
                     .ldx = h,
                     .rows = rows,
                     .count = count,
                     .n = h,
                     .out = picked_.as<float>()},
                    stream);
  norm(picked_.as<float>(), final_norm_, count, normed_.data(), options_.act, stream);
  apply(head_, normed_.data(), h, count, out, config_.vocab_size, false, stream);
  const float cap = static_cast<float>(config_.final_logit_softcap);
  if (cap > 0) {
    for (int64_t i = 0; i < int64_t{count} * config_.vocab_size; ++i)
      out[i] = cap * std::tanh(out[i] / cap);
  }
}

void Decoder::apply(const Linear& linear, const void* x, int64_t ldx, int32_t m, float* y,
                    int64_t ldy, bool accumulate, device::Stream& stream) const {
  for (const Linear::Part& part : linear.parts) {
    ops_->linear({.x = x,
                  .x_dtype = options_.act,
                  .ldx = ldx,
                  .m = m,
                  .weight = &part.weight,
                  .bias = linear.bias.empty() ? nullptr : linear.bias.data() + part.first_row,
                  .y = y + part.first_row,
                  .ldy = ldy,
                  .accumulate = accumulate,
                  .deterministic = options_.deterministic},
                 stream);
  }
}

void Decoder::norm(const float* x, const std::vector<float>& weight, int32_t rows, void* out,
                   DType out_dtype, device::Stream& stream) const {
  const int32_t n = config_.hidden_size;
  ops_->rms_norm({.x = x,
                  .ldx = n,
                  .weight = weight.data(),
                  .eps = static_cast<float>(config_.rms_norm_eps),
                  .rows = rows,
                  .n = n,
                  .out = out,
                  .ldo = n,
                  .out_dtype = out_dtype},
                 stream);
}

}  // namespace attune::model
