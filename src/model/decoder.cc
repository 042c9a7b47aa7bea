#include "model/decoder.h"

#include <algorithm>

#include "base/check.h"

namespace attune::model {

using tensor::DType;

constexpr char kEmbedding[] = "model.embed_tokens.weight";

Result<std::unique_ptr<Decoder>> Decoder::load(const formats::ModelConfig& config,
                                               const formats::WeightSource& weights,
                                               const DecoderOptions& options,
                                               device::Device& device, device::Stream& stream,
                                               const ops::OpTable& ops, const Progress& progress) {
  std::unique_ptr<Decoder> d(new Decoder());
  d->context_ = {config, options, &ops};
  d->attention_ = config.has_mla() ? make_mla(d->context_) : make_mha(d->context_);
  d->mlp_ = make_mlp(d->context_);
  if (config.moe.num_experts > 0) d->moe_ = make_moe(d->context_);
  WeightLoader loader(weights, device, stream, progress);
  const std::vector<double> frequencies = formats::inverse_frequencies(config.rope);
  ATTUNE_ASSIGN_OR_RETURN(d->inv_freq_,
                          loader.upload(std::vector<float>(frequencies.begin(), frequencies.end()),
                                        "rope frequencies"));
  ATTUNE_RETURN_IF_ERROR(d->load_embedding(loader));
  ATTUNE_RETURN_IF_ERROR(d->load_layers(loader));
  ATTUNE_RETURN_IF_ERROR(loader.finish());
  d->weight_bytes_ = loader.packed_bytes() + d->embedding_.bytes();
  ATTUNE_RETURN_IF_ERROR(d->allocate(device));
  return d;
}

// A copy, so that nothing is read of a file that may change or shrink while the engine serves.
Status Decoder::load_embedding(WeightLoader& loader) {
  ATTUNE_ASSIGN_OR_RETURN(const tensor::TensorView view, loader.get(kEmbedding));
  ATTUNE_ASSIGN_OR_RETURN(embedding_, loader.copy(view, "the embedding"));
  embedding_dtype_ = view.dtype;
  if (!context_.config.tie_word_embeddings) loader.done_with(view);
  return {};
}

Status Decoder::load_layers(WeightLoader& loader) {
  const formats::ModelConfig& c = context_.config;
  for (int32_t i = 0; i < c.num_layers; ++i) {
    ATTUNE_RETURN_IF_ERROR(attention_->load(i, loader));
    ATTUNE_RETURN_IF_ERROR(mlp_of(i).load(i, loader));
  }
  ATTUNE_RETURN_IF_ERROR(loader.vector("model.norm.weight", final_norm_));
  // A tied head reads the embedding's values; packed apart, since the lookup wants whole rows.
  return loader.linear("", {c.tie_word_embeddings ? "model.embed_tokens" : "lm_head"}, false,
                       context_.options.act, head_);
}

Status Decoder::allocate(device::Device& device) {
  const formats::ModelConfig& c = context_.config;
  const int64_t t = context_.options.max_tokens, h = c.hidden_size;
  ATTUNE_RETURN_IF_ERROR(attention_->allocate(device));
  bool dense = false;
  for (int32_t i = 0; i < c.num_layers; ++i) dense |= !c.moe.is_moe(i);
  if (dense) ATTUNE_RETURN_IF_ERROR(mlp_->allocate(device));
  if (moe_) ATTUNE_RETURN_IF_ERROR(moe_->allocate(device));
  return model::allocate(
      {{hidden_, t * h * 4, "the residual stream"},
       {normed_, std::max<int64_t>(t, max_logit_rows()) * h * context_.act_bytes(),
        "normed activations"},
       {cos_, t * c.rope.dim / 2 * 4, "rope cosines"},
       {sin_, t * c.rope.dim / 2 * 4, "rope sines"}},
      device);
}

int64_t Decoder::scratch_bytes() const {
  int64_t sum = attention_->scratch_bytes() + mlp_->scratch_bytes();
  if (moe_) sum += moe_->scratch_bytes();
  for (const device::Buffer* b : {&hidden_, &normed_, &cos_, &sin_}) sum += b->bytes();
  return sum;
}

void Decoder::forward(const ForwardInput& in, device::Stream& stream) {
  const formats::ModelConfig& c = context_.config;
  ATTUNE_CHECK(in.num_tokens <= context_.options.max_tokens);
  context_.ops->embed({.ids = in.ids,
                       .tokens = in.num_tokens,
                       .table = embedding_.data(),
                       .vocab = c.vocab_size,
                       .table_dtype = embedding_dtype_,
                       .hidden = c.hidden_size,
                       .scale = 1.0f,
                       .out = hidden_.as<float>()},
                      stream);
  context_.ops->rope_table({.positions = in.positions,
                            .tokens = in.num_tokens,
                            .inv_freq = inv_freq_.data(),
                            .rot_dim = c.rope.dim,
                            .magnitude = static_cast<float>(c.rope.attention_factor),
                            .cos = cos_.as<float>(),
                            .sin = sin_.as<float>()},
                           stream);
  const Step step{in, cos_.as<float>(), sin_.as<float>(), normed_.data()};
  for (int32_t i = 0; i < c.num_layers; ++i) {
    if (in.before_layer) in.before_layer(i);
    attention_->run(i, step, hidden_.as<float>(), stream);
    mlp_of(i).run(i, step, hidden_.as<float>(), stream);
  }
}

void Decoder::logits(const int32_t* rows, int32_t count, float* out, device::Stream& stream) {
  ATTUNE_CHECK(count <= max_logit_rows());
  const int32_t h = context_.config.hidden_size;
  context_.norm(hidden_.as<float>(), h, final_norm_, context_.config.rms_norm_eps, count,
                normed_.data(), context_.options.act, stream, rows);
  const int32_t vocab = context_.config.vocab_size;
  context_.apply(head_, normed_.data(), h, count, out, DType::kF32, vocab, stream);
  const float cap = static_cast<float>(context_.config.final_logit_softcap);
  if (cap > 0)
    context_.ops->soft_cap({.x = out, .count = int64_t{count} * vocab, .cap = cap}, stream);
}

}  // namespace attune::model
