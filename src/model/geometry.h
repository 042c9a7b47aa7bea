// What attention and the KV pool must know of a model.
#pragma once

#include "formats/model_config.h"
#include "kv/layout/layout.h"

namespace attune::model {

// What a layer stores per token. MLA: one row, [latent | rotated key], of which the latent is V.
inline kv::LayerKvSpec kv_spec(const formats::ModelConfig& c, tensor::DType dtype) {
  if (!c.has_mla()) return {c.num_kv_heads, c.head_dim, c.v_head_dim, dtype};
  return {1, c.mla.kv_lora_rank + c.rope.dim, c.mla.kv_lora_rank, dtype, true};
}

// Heads as an attention call sees them.
struct AttentionShape {
  int32_t q_heads = 0, kv_heads = 0, qk_dim = 0, v_dim = 0;
};

// Over the pool's pages; MLA: absorbed.
inline AttentionShape paged_shape(const formats::ModelConfig& c) {
  const kv::LayerKvSpec spec = kv_spec(c, tensor::DType::kF32);
  return {c.num_heads, spec.kv_heads, spec.k_dim, spec.v_dim};
}

// MLA, over up-projected rows.
inline AttentionShape rows_shape(const formats::ModelConfig& c) {
  return {c.num_heads, c.num_heads, c.head_dim, c.v_head_dim};
}

}  // namespace attune::model
