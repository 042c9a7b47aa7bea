// The decoder-only transformer that all present families share: embedding, N x (attention, gated
// MLP), norm, head. It walks the layers once for any device; what differs by device is behind the
// op table, what differs by weight format is inside PackedWeight, what differs by family is in
// ModelConfig.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "device/device.h"
#include "formats/weight_source.h"
#include "kv/layout/layout.h"
#include "model/forward.h"
#include "ops/gemm/gemm.h"
#include "ops/ops.h"

namespace attune::model {

class Decoder {
 public:
  using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

  // Packs the weights for the device; the source may go afterwards but for the embedding table,
  // which is read in place: keep it. Errors: as pack_weight, and data_loss for what the config asks
  // and the source lacks.
  static Result<std::unique_ptr<Decoder>> load(const formats::ModelConfig& config,
                                               const formats::WeightSource& weights,
                                               const DecoderOptions& options,
                                               device::Device& device, device::Stream& stream,
                                               const ops::OpTable& ops, const Progress& progress);

  // Runs the layers; afterwards hidden() holds the residual stream of every token. Inside
  // Stream::launch.
  void forward(const ForwardInput& in, device::Stream& stream);
  // Final norm and head of the picked rows: logits[i, :] of hidden row rows[i]. At most
  // max_logit_rows.
  void logits(const int32_t* rows, int32_t count, float* out /* [count, vocab] */,
              device::Stream& stream);

  const float* hidden() const { return hidden_.as<float>(); }  // [num_tokens, hidden_size]
  static constexpr int32_t kMaxLogitRows = 64;
  const formats::ModelConfig& config() const { return config_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t scratch_bytes() const;

 private:
  // A linear layer: one packed weight, or several of different formats side by side.
  struct Linear {
    struct Part {
      ops::PackedWeight weight;
      int32_t first_row = 0;
    };
    std::vector<Part> parts;
    std::vector<float> bias;  // empty: none
  };
  struct Layer {
    std::vector<float> input_norm, post_norm, q_norm, k_norm;
    Linear qkv, o, gate_up, down;
    int32_t window = 0;
  };
  class Loader;

  Decoder() = default;
  void attention_block(const Layer& layer, const kv::PagedKvView& kv, const ForwardInput& in,
                       device::Stream& stream);
  void mlp_block(const Layer& layer, int32_t tokens, device::Stream& stream);
  void apply(const Linear& linear, const void* x, int64_t ldx, int32_t m, float* y, int64_t ldy,
             bool accumulate, device::Stream& stream) const;
  void norm(const float* x, const std::vector<float>& weight, int32_t rows, void* out,
            tensor::DType out_dtype, device::Stream& stream) const;

  formats::ModelConfig config_;
  DecoderOptions options_;
  const ops::OpTable* ops_ = nullptr;
  tensor::TensorView embedding_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  std::vector<float> inv_freq_;
  Linear head_;
  int64_t weight_bytes_ = 0;

  device::Buffer hidden_, normed_, qkv_, q_, attn_, gate_up_, act_, cos_, sin_, picked_;
};

}  // namespace attune::model
