// The decoder-only transformer that all present families share: embedding, N x (attention, MLP),
// norm, head. It walks the layers once for any device; what differs by device is behind the op
// table, what differs by weight format is inside PackedWeight, what differs by family is in
// ModelConfig, and the kinds of layers are blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/backend.h"
#include "device/device.h"
#include "formats/weight_source.h"
#include "kv/layout/layout.h"
#include "model/block.h"
#include "model/forward.h"
#include "model/geometry.h"
#include "model/linear.h"
#include "ops/gemm/gemm.h"
#include "ops/ops.h"

namespace attune::model {

class Decoder {
 public:
  using Progress = WeightLoader::Progress;

  // Packs the weights for the device; the source may go afterwards. Errors: as pack_weight, and
  // data_loss for what the config asks and the source lacks.
  static Result<std::unique_ptr<Decoder>> load(const formats::ModelConfig& config,
                                               const formats::WeightSource& weights,
                                               const DecoderOptions& options,
                                               device::Device& device, device::Stream& stream,
                                               const ops::OpTable& ops, const Progress& progress);

  // Runs the layers; afterwards hidden() holds the residual stream of every token. Inside
  // Stream::launch.
  void forward(const ForwardInput& in, device::Stream& stream);
  // Final norm and head of the picked rows: logits[i, :] of hidden row rows[i]. At most
  // options.max_logit_rows. `rows` lies where the device reads it.
  void logits(const int32_t* rows, int32_t count, float* out /* [count, vocab] */,
              device::Stream& stream);

  const float* hidden() const { return hidden_.as<float>(); }  // [num_tokens, hidden_size]
  int32_t max_logit_rows() const { return context_.options.max_logit_rows; }
  const formats::ModelConfig& config() const { return context_.config; }
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t scratch_bytes() const;  // of a step of max_tokens

 private:
  Decoder() = default;
  Status load_embedding(WeightLoader& loader);
  Status load_layers(WeightLoader& loader);
  Status allocate(device::Device& device);
  // The block of a layer's second half.
  Block& mlp_of(int32_t layer) const { return context_.config.moe.is_moe(layer) ? *moe_ : *mlp_; }

  Context context_;
  device::Buffer embedding_;  // [vocab_size, hidden_size] as the file has it
  tensor::DType embedding_dtype_ = tensor::DType::kF32;
  std::unique_ptr<Block> attention_, mlp_, moe_;  // moe_ only where the model has experts
  Vector final_norm_, inv_freq_;
  Linear head_;
  int64_t weight_bytes_ = 0;

  device::Buffer hidden_, normed_, cos_, sin_;
};

}  // namespace attune::model
