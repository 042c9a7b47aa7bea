// One step as the model takes it: tokens, where their state lies, and who serves their attention.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "attention/backend.h"
#include "kv/layout/layout.h"
#include "tensor/dtype.h"

namespace attune::model {

struct DecoderOptions {
  tensor::DType act = tensor::DType::kF32;  // float32 or bfloat16: inputs of the matrix products
  // Their outputs inside a block: queries, keys, values, gate and up. The residual stream and the
  // logits are float32 always.
  tensor::DType inter = tensor::DType::kF32;
  bool deterministic = false;
  // A backend that may be asked reads past a sequence's end (attention/capabilities.h). MHA alone.
  bool clear_pages = false;
  int32_t max_tokens = 512;     // of one forward; sizes the scratch
  int32_t max_logit_rows = 64;  // of one call of logits()
  // MLA: keys that are up-projected at once, the rows of the ragged workspace; 0: max_tokens,
  // -1: none, as everything is absorbed.
  int64_t mla_capacity = 0;
};

// MLA: one attention call over rows that are gathered and up-projected for it.
struct MlaPiece {
  attention::Plan* plan = nullptr;
  int32_t first_token = 0, num_tokens = 0;  // query rows, relative to the group
  // Pool positions (slot * page_size + offset) of the keys, in the order of their rows; empty: the
  // group's own new tokens in order.
  std::span<const int64_t> gather;
};

// Rows of one step that one attention backend serves together.
struct AttentionGroup {
  const attention::Backend* backend = nullptr;
  attention::Plan* plan = nullptr;  // kPaged, kAbsorbed
  int32_t first_token = 0, num_tokens = 0;
  attention::Path path = attention::Path::kPaged;
  // The paths that read rows. Each piece writes its query rows, but the pieces of kChunked after
  // the first are merged into what is there by their LSE.
  std::span<const MlaPiece> pieces;
};

// One step on the device; arrays live until it is done.
struct ForwardInput {
  int32_t num_tokens = 0;
  const int32_t* ids = nullptr;            // [num_tokens]
  const int32_t* positions = nullptr;      // [num_tokens]
  const int64_t* slot_mapping = nullptr;   // [num_tokens], see ops::RopeAppendParams
  std::span<const AttentionGroup> groups;  // cover [0, num_tokens) in order
  std::span<const kv::PagedKvView> kv;     // one per layer
  // Called before a layer's work is given to the stream: its pages may be on their way. May be
  // empty.
  std::function<void(int32_t layer)> before_layer;
};

}  // namespace attune::model
