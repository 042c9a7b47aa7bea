// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 section 2.1). The pool holds one row
// per token, [latent | rotated key]. A group's queries meet it on one of two ways, which are equal
// but for rounding:
//   absorbed: each head's key up-projection is applied to the query instead, attention runs over
//     the latents as they are (one KV head), and the value up-projection is applied to its result;
//   rows: the latents of a piece's keys are gathered and up-projected to keys and values of every
//     head, in a workspace of mla_capacity rows. Like everything that attention is called with,
//     they have the type of products' outputs (DecoderOptions::inter).
#pragma once

#include "model/block.h"

namespace attune::model {

class Mla final : public Block {
 public:
  explicit Mla(const Context& context);

  Status load(int32_t index, WeightLoader& loader) override;
  Status allocate(device::Device& device) override;
  int64_t scratch_bytes() const override;
  void run(int32_t index, const Step& step, float* hidden, device::Stream& stream) override;

 private:
  struct Layer {
    Vector norm, q_a_norm, kv_a_norm;
    Linear q_a, q;  // q: from q_a's output, or from the hidden state
    Linear kv_a;
    // Of each head: keys from latents [nope, lora], its transpose, and values from latents [v,
    // lora].
    std::vector<Linear> k_up, k_up_transposed, v_up;
    Linear o;
  };

  Status load_up_projection(const std::string& prefix, Layer& layer, WeightLoader& loader);
  Status load_head(const tensor::TensorView& k, bool k_is_transposed, const tensor::TensorView& v,
                   Layer& layer, WeightLoader& loader);
  void project(const Layer& layer, const Step& step, const kv::PagedKvView& kv,
               device::Stream& stream);
  void rotate(const Step& step, const AttentionGroup& group, void* out, tensor::DType out_dtype,
              int64_t ldo, int64_t head_stride, device::Stream& stream) const;
  void absorbed(const Layer& layer, const Step& step, const AttentionGroup& group,
                const kv::PagedKvView& kv, device::Stream& stream);
  void over_rows(const Layer& layer, const Step& step, const AttentionGroup& group,
                 const kv::PagedKvView& kv, device::Stream& stream);
  void make_rows(const Layer& layer, std::span<const int64_t> positions, const kv::PagedKvView& kv,
                 device::Stream& stream);
  void run_piece(const AttentionGroup& group, const MlaPiece& piece, bool merge,
                 device::Stream& stream);

  int32_t heads() const { return c_.config.num_heads; }
  int64_t lora() const { return c_.config.mla.kv_lora_rank; }
  int64_t row() const { return lora() + c_.config.rope.dim; }
  int64_t q_width() const { return int64_t{heads()} * c_.config.head_dim; }
  int64_t o_width() const { return int64_t{heads()} * c_.config.v_head_dim; }
  // Queries, rotated in place, or a copy of the type that rows have.
  char* q_over_rows() const { return (q_rows_.data() ? q_rows_ : q_).as<char>(); }

  const Context& c_;
  const int64_t capacity_;
  std::vector<Layer> layers_;
  std::vector<ops::LinearParams> items_;
  // [max_tokens, ...]: q_a's output and its norm, queries, kv_a's output, attention's result and
  // the same as activations.
  device::Buffer q_a_, q_a_act_, q_, kv_, attn_, attn_act_;
  device::Buffer q_nope_, q_absorbed_, latent_out_;  // absorbed
  device::Buffer q_rows_;                            // [max_tokens, ...], not of float32
  device::Buffer latents_, rows_;                    // [capacity, ...], K and then V
  device::Buffer part_, part_lse_, lse_;             // [max_tokens, ...] of chunked
};

}  // namespace attune::model
