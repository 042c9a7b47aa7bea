#include "model/mla.h"

#include <algorithm>

#include "base/check.h"
#include "model/transpose.h"

namespace attune::model {

using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

namespace {

// DeepSeek's norms of latents have their class's default, not the config's rms_norm_eps.
constexpr double kLatentNormEps = 1e-6;

// Rows [row, row + rows) of a matrix of k columns that begins at `all`.
TensorView rows_of(const TensorView& all, int64_t row, int64_t rows, int64_t k) {
  return {static_cast<const char*>(all.data) + tensor::dtype_bytes(all.dtype, row * k), all.dtype,
          Shape{rows, k}};
}

}  // namespace

Mla::Mla(const Context& context)
    : c_(context),
      capacity_(context.options.mla_capacity < 0
                    ? 0
                    : std::max<int64_t>(context.options.max_tokens, context.options.mla_capacity)),
      layers_(static_cast<size_t>(context.config.num_layers)) {}

Status Mla::load(int32_t index, WeightLoader& loader) {
  const formats::ModelConfig& m = c_.config;
  const DType act = c_.options.act;
  const std::string layer_prefix = "model.layers." + std::to_string(index) + ".";
  const std::string p = layer_prefix + "self_attn.";
  Layer& layer = layers_[index];
  ATTUNE_RETURN_IF_ERROR(loader.vector(layer_prefix + "input_layernorm.weight", layer.norm));
  if (m.mla.q_lora_rank > 0) {
    ATTUNE_RETURN_IF_ERROR(loader.linear(p, {"q_a_proj"}, m.qkv_bias, act, layer.q_a));
    ATTUNE_RETURN_IF_ERROR(loader.vector(p + "q_a_layernorm.weight", layer.q_a_norm));
    ATTUNE_RETURN_IF_ERROR(loader.linear(p, {"q_b_proj"}, false, act, layer.q));
  } else {
    ATTUNE_RETURN_IF_ERROR(loader.linear(p, {"q_proj"}, false, act, layer.q));
  }
  ATTUNE_RETURN_IF_ERROR(loader.linear(p, {"kv_a_proj_with_mqa"}, m.qkv_bias, act, layer.kv_a));
  ATTUNE_RETURN_IF_ERROR(loader.vector(p + "kv_a_layernorm.weight", layer.kv_a_norm));
  ATTUNE_RETURN_IF_ERROR(load_up_projection(p, layer, loader));
  return loader.linear(p, {"o_proj"}, m.o_bias, act, layer.o);
}

Status Mla::load_up_projection(const std::string& p, Layer& layer, WeightLoader& loader) {
  const formats::ModelConfig& m = c_.config;
  const int64_t nope = m.mla.nope_dim, v = m.v_head_dim, lora = m.mla.kv_lora_rank;
  for (std::vector<Linear>* all : {&layer.k_up, &layer.k_up_transposed, &layer.v_up})
    all->reserve(static_cast<size_t>(m.num_heads));
  if (m.mla.split_kv_b) {
    ATTUNE_ASSIGN_OR_RETURN(const TensorView k_b, loader.get(p + "k_b_proj.weight"));
    ATTUNE_ASSIGN_OR_RETURN(const TensorView v_b, loader.get(p + "v_b_proj.weight"));
    for (int64_t h = 0; h < m.num_heads; ++h)
      ATTUNE_RETURN_IF_ERROR(load_head(rows_of(k_b, h * lora, lora, nope), true,
                                       rows_of(v_b, h * v, v, lora), layer, loader));
    loader.done_with(k_b);
    loader.done_with(v_b);
    return {};
  }
  ATTUNE_ASSIGN_OR_RETURN(const TensorView kv_b, loader.get(p + "kv_b_proj.weight"));
  for (int64_t h = 0; h < m.num_heads; ++h)
    ATTUNE_RETURN_IF_ERROR(load_head(rows_of(kv_b, h * (nope + v), nope, lora), false,
                                     rows_of(kv_b, h * (nope + v) + nope, v, lora), layer, loader));
  loader.done_with(kv_b);
  return {};
}

// Keys are needed both ways round: one is what the file has, the other is transposed here (a
// quantised weight is dequantised for it, since its blocks run along the rows).
Status Mla::load_head(const TensorView& k, bool k_is_transposed, const TensorView& v, Layer& layer,
                      WeightLoader& loader) {
  ATTUNE_ASSIGN_OR_RETURN(const Transposed turned, transpose(k));
  Linear k_up, k_up_transposed, v_up;
  Linear& as_it_is = k_is_transposed ? k_up_transposed : k_up;
  Linear& other = k_is_transposed ? k_up : k_up_transposed;
  ATTUNE_RETURN_IF_ERROR(loader.pack({k}, c_.options.act, as_it_is));
  ATTUNE_RETURN_IF_ERROR(loader.pack({turned.view}, c_.options.act, other));
  ATTUNE_RETURN_IF_ERROR(loader.pack({v}, c_.options.act, v_up));
  layer.k_up.push_back(std::move(k_up));
  layer.k_up_transposed.push_back(std::move(k_up_transposed));
  layer.v_up.push_back(std::move(v_up));
  return {};
}

Status Mla::allocate(device::Device& device) {
  const formats::ModelConfig& m = c_.config;
  const int64_t t = c_.options.max_tokens, h = heads(), act = c_.act_bytes();
  const int64_t inter = c_.inter_bytes(), q_lora = m.mla.q_lora_rank;
  items_.reserve(2 * static_cast<size_t>(h));
  return model::allocate(
      {{q_a_, t * q_lora * 4, "query latents"},
       {q_a_act_, t * q_lora * act, "normed query latents"},
       {q_, t * q_width() * 4, "queries"},
       {kv_, t * row() * 4, "latents"},
       {attn_, t * o_width() * inter, "attention outputs"},
       {attn_act_, act == inter ? 0 : t * o_width() * act, "attention outputs"},
       {q_nope_, act == 4 ? 0 : t * h * m.mla.nope_dim * act, "queries to absorb"},
       {q_absorbed_, t * h * row() * inter, "absorbed queries"},
       {latent_out_, t * h * lora() * act, "absorbed outputs"},
       {latents_, capacity_ * lora() * act, "gathered latents"},
       {q_rows_, inter == 4 || capacity_ == 0 ? 0 : t * q_width() * inter, "queries over rows"},
       {rows_, capacity_ * (q_width() + o_width()) * inter, "up-projected keys and values"},
       {part_, capacity_ == 0 ? 0 : t * o_width() * inter, "a chunk's outputs"},
       {part_lse_, capacity_ == 0 ? 0 : t * h * 4, "a chunk's LSE"},
       {lse_, capacity_ == 0 ? 0 : t * h * 4, "LSE"}},
      device);
}

int64_t Mla::scratch_bytes() const {
  int64_t sum = 0;
  for (const device::Buffer* b :
       {&q_a_, &q_a_act_, &q_, &kv_, &attn_, &attn_act_, &q_nope_, &q_absorbed_, &latent_out_,
        &latents_, &q_rows_, &rows_, &part_, &part_lse_, &lse_})
    sum += b->bytes();
  return sum;
}

void Mla::run(int32_t index, const Step& step, float* hidden, device::Stream& stream) {
  const formats::ModelConfig& m = c_.config;
  const Layer& layer = layers_[index];
  const kv::PagedKvView& kv = step.in.kv[index];
  const int32_t tokens = step.in.num_tokens;
  c_.norm(hidden, m.hidden_size, layer.norm, m.rms_norm_eps, tokens, step.normed, c_.options.act,
          stream);
  project(layer, step, kv, stream);
  for (const AttentionGroup& group : step.in.groups) {
    if (attention::reads_rows(group.path)) {
      over_rows(layer, step, group, kv, stream);
    } else {
      absorbed(layer, step, group, kv, stream);
    }
  }
  const void* attn = attn_.data();
  if (c_.options.act != c_.options.inter) {
    c_.ops->cast({.x = attn_.as<float>(),
                  .ldx = o_width(),
                  .head_stride = 0,
                  .rows = tokens,
                  .heads = 1,
                  .n = static_cast<int32_t>(o_width()),
                  .out = attn_act_.data(),
                  .out_dtype = c_.options.act},
                 stream);
    attn = attn_act_.data();
  }
  c_.add(layer.o, attn, o_width(), tokens, hidden, m.hidden_size, stream);
}

// Queries, not yet rotated, into q_; the step's rows into the pool.
void Mla::project(const Layer& layer, const Step& step, const kv::PagedKvView& kv,
                  device::Stream& stream) {
  const formats::ModelConfig& m = c_.config;
  const int32_t tokens = step.in.num_tokens, hidden = m.hidden_size;
  const void* x = step.normed;
  int64_t inputs = hidden;
  if (m.mla.q_lora_rank > 0) {
    inputs = m.mla.q_lora_rank;
    c_.apply(layer.q_a, step.normed, hidden, tokens, q_a_.data(), DType::kF32, inputs, stream);
    c_.norm(q_a_.as<float>(), inputs, layer.q_a_norm, kLatentNormEps, tokens, q_a_act_.data(),
            c_.options.act, stream);
    x = q_a_act_.data();
  }
  c_.apply(layer.q, x, inputs, tokens, q_.data(), DType::kF32, q_width(), stream);
  c_.apply(layer.kv_a, step.normed, hidden, tokens, kv_.data(), DType::kF32, row(), stream);
  c_.ops->latent_append({.kv = kv_.as<float>(),
                         .ldkv = row(),
                         .tokens = tokens,
                         .latent_dim = m.mla.kv_lora_rank,
                         .rot_dim = m.rope.dim,
                         .style = c_.rope_style(),
                         .cos = step.cos,
                         .sin = step.sin,
                         .norm = layer.kv_a_norm.data(),
                         .norm_eps = static_cast<float>(kLatentNormEps),
                         .slot_mapping = step.in.slot_mapping,
                         .kv_base = kv.base,
                         .kv_dtype = kv.dtype,
                         .page_stride = kv.page_stride,
                         .token_stride = kv.k_token_stride,
                         .page_size = kv.page_size},
                        stream);
}

// The group's rotated parts of its queries: heads lie ldo and head_stride apart in `out`.
void Mla::rotate(const Step& step, const AttentionGroup& group, void* out, DType out_dtype,
                 int64_t ldo, int64_t head_stride, device::Stream& stream) const {
  const formats::ModelConfig& m = c_.config;
  const int64_t first = group.first_token, half = m.rope.dim / 2;
  c_.ops->rope({.x = q_.as<float>() + first * q_width() + m.mla.nope_dim,
                .ldx = q_width(),
                .head_stride = m.head_dim,
                .tokens = group.num_tokens,
                .heads = heads(),
                .rot_dim = m.rope.dim,
                .style = c_.rope_style(),
                .cos = step.cos + first * half,
                .sin = step.sin + first * half,
                .out = out,
                .out_dtype = out_dtype,
                .ldo = ldo,
                .out_head_stride = head_stride},
               stream);
}

void Mla::absorbed(const Layer& layer, const Step& step, const AttentionGroup& group,
                   const kv::PagedKvView& kv, device::Stream& stream) {
  const formats::ModelConfig& m = c_.config;
  const int64_t first = group.first_token, act = c_.act_bytes();
  const int64_t nope = m.mla.nope_dim, width = heads() * row();
  // q_nope as inputs of a product: in place when it is float32 already.
  const float* q = q_.as<float>() + first * q_width();
  const char* x = reinterpret_cast<const char*>(q);
  int64_t ldx = q_width(), x_head = m.head_dim;
  if (c_.options.act != DType::kF32) {
    c_.ops->cast({.x = q,
                  .ldx = q_width(),
                  .head_stride = m.head_dim,
                  .rows = group.num_tokens,
                  .heads = heads(),
                  .n = m.mla.nope_dim,
                  .out = q_nope_.data(),
                  .out_dtype = c_.options.act},
                 stream);
    x = q_nope_.as<const char>();
    ldx = heads() * nope;
    x_head = nope;
  }
  char* q_absorbed = q_absorbed_.as<char>();
  const int64_t inter = c_.inter_bytes();
  items_.clear();
  for (int64_t h = 0; h < heads(); ++h)
    c_.append_items(layer.k_up_transposed[h], x + h * x_head * act, ldx, group.num_tokens,
                    q_absorbed + h * row() * inter, c_.options.inter, width, items_);
  c_.ops->linear_group(items_.data(), static_cast<int32_t>(items_.size()), stream);
  rotate(step, group, q_absorbed + lora() * inter, c_.options.inter, width, row(), stream);
  group.backend->run(*group.plan,
                     {.q_heads = heads(),
                      .kv_heads = 1,
                      .scale = static_cast<float>(m.attention_scale),
                      .soft_cap = static_cast<float>(m.attn_logit_softcap)},
                     kv,
                     {.q = q_absorbed,
                      .q_dtype = c_.options.inter,
                      .q_stride = width,
                      .out = latent_out_.data(),
                      .out_dtype = c_.options.act,
                      .out_stride = heads() * lora()},
                     stream);
  items_.clear();
  for (int64_t h = 0; h < heads(); ++h)
    c_.append_items(layer.v_up[h], latent_out_.as<char>() + h * lora() * act, heads() * lora(),
                    group.num_tokens,
                    attn_.as<char>() + (first * o_width() + h * m.v_head_dim) * inter,
                    c_.options.inter, o_width(), items_);
  c_.ops->linear_group(items_.data(), static_cast<int32_t>(items_.size()), stream);
}

void Mla::over_rows(const Layer& layer, const Step& step, const AttentionGroup& group,
                    const kv::PagedKvView& kv, device::Stream& stream) {
  const int64_t first = group.first_token * q_width();
  if (c_.options.inter != DType::kF32)
    c_.ops->cast({.x = q_.as<float>() + first,
                  .ldx = q_width(),
                  .head_stride = 0,
                  .rows = group.num_tokens,
                  .heads = 1,
                  .n = static_cast<int32_t>(q_width()),
                  .out = q_over_rows() + first * c_.inter_bytes(),
                  .out_dtype = c_.options.inter},
                 stream);
  rotate(step, group, q_over_rows() + (first + c_.config.mla.nope_dim) * c_.inter_bytes(),
         c_.options.inter, q_width(), c_.config.head_dim, stream);
  const std::span<const int64_t> own(step.in.slot_mapping + group.first_token,
                                     static_cast<size_t>(group.num_tokens));
  for (size_t i = 0; i < group.pieces.size(); ++i) {
    const MlaPiece& piece = group.pieces[i];
    make_rows(layer, piece.gather.empty() ? own : piece.gather, kv, stream);
    run_piece(group, piece, group.path == attention::Path::kChunked && i > 0, stream);
  }
}

// Keys and values of every head for the positions' tokens, into rows_.
void Mla::make_rows(const Layer& layer, std::span<const int64_t> positions,
                    const kv::PagedKvView& kv, device::Stream& stream) {
  const formats::ModelConfig& m = c_.config;
  ATTUNE_CHECK(static_cast<int64_t>(positions.size()) <= capacity_);
  const auto rows = static_cast<int32_t>(positions.size());
  const int64_t inter = c_.inter_bytes();
  char* k = rows_.as<char>();
  char* v = k + capacity_ * q_width() * inter;
  c_.ops->latent_gather({.positions = positions.data(),
                         .rows = rows,
                         .latent_dim = m.mla.kv_lora_rank,
                         .rot_dim = m.rope.dim,
                         .heads = heads(),
                         .kv_base = kv.base,
                         .kv_dtype = kv.dtype,
                         .page_stride = kv.page_stride,
                         .token_stride = kv.k_token_stride,
                         .page_size = kv.page_size,
                         .latents = latents_.data(),
                         .latent_dtype = c_.options.act,
                         .rope = k + m.mla.nope_dim * inter,
                         .rope_dtype = c_.options.inter,
                         .rope_row_stride = q_width(),
                         .rope_head_stride = m.head_dim},
                        stream);
  items_.clear();
  for (int64_t h = 0; h < heads(); ++h) {
    c_.append_items(layer.k_up[h], latents_.data(), lora(), rows, k + h * m.head_dim * inter,
                    c_.options.inter, q_width(), items_);
    c_.append_items(layer.v_up[h], latents_.data(), lora(), rows, v + h * m.v_head_dim * inter,
                    c_.options.inter, o_width(), items_);
  }
  c_.ops->linear_group(items_.data(), static_cast<int32_t>(items_.size()), stream);
}

void Mla::run_piece(const AttentionGroup& group, const MlaPiece& piece, bool merge,
                    device::Stream& stream) {
  const formats::ModelConfig& m = c_.config;
  const int64_t first = group.first_token + piece.first_token, inter = c_.inter_bytes();
  char* k = rows_.as<char>();
  const kv::PagedKvView view =
      kv::make_ragged_view(k, k + capacity_ * q_width() * inter, c_.options.inter,
                           static_cast<int32_t>(capacity_), heads(), m.head_dim, m.v_head_dim);
  char* out = attn_.as<char>() + first * o_width() * inter;
  float* lse = lse_.as<float>() + first * heads();
  group.backend->run(*piece.plan,
                     {.q_heads = heads(),
                      .kv_heads = heads(),
                      .scale = static_cast<float>(m.attention_scale),
                      .soft_cap = static_cast<float>(m.attn_logit_softcap)},
                     view,
                     {.q = q_over_rows() + first * q_width() * inter,
                      .q_dtype = c_.options.inter,
                      .q_stride = q_width(),
                      .out = merge ? part_.as<char>() : out,
                      .out_dtype = c_.options.inter,
                      .out_stride = o_width(),
                      .lse = merge ? part_lse_.as<float>() : lse},
                     stream);
  if (!merge) return;
  c_.ops->merge_state({.part = part_.data(),
                       .part_lse = part_lse_.as<float>(),
                       .tokens = piece.num_tokens,
                       .heads = heads(),
                       .v_dim = m.v_head_dim,
                       .out = out,
                       .lse = lse,
                       .dtype = c_.options.inter},
                      stream);
}

std::unique_ptr<Block> make_mla(const Context& context) {
  return std::make_unique<Mla>(context);
}

}  // namespace attune::model
