// Linear layers as the blocks use them, and the loader that packs them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/uploader.h"
#include "formats/weight_source.h"
#include "model/forward.h"
#include "ops/gemm/gemm.h"
#include "ops/ops.h"

namespace attune::model {

// A float32 vector in device memory: a norm's weight, a bias.
struct Vector {
  device::Buffer buffer;
  int32_t n = 0;
  const float* data() const { return buffer.as<const float>(); }  // null: there is none
};

// One packed weight, or several of different formats side by side.
struct Linear {
  struct Part {
    ops::PackedWeight weight;
    int32_t first_row = 0;
  };
  std::vector<Part> parts;
  Vector bias;  // of all rows, or none
};

// What all blocks share; outlives them.
struct Context {
  formats::ModelConfig config;
  DecoderOptions options;
  const ops::OpTable* ops = nullptr;

  // y[m, outputs] = x[m, inputs] * w^T + bias; x of the activation type, y of y_dtype, strides in
  // elements.
  void apply(const Linear& linear, const void* x, int64_t ldx, int32_t m, void* y,
             tensor::DType y_dtype, int64_t ldy, device::Stream& stream) const;
  // The same, added to what y has.
  void add(const Linear& linear, const void* x, int64_t ldx, int32_t m, float* y, int64_t ldy,
           device::Stream& stream) const;
  // The same product for linear_group; appended to `items`.
  void append_items(const Linear& linear, const void* x, int64_t ldx, int32_t m, void* y,
                    tensor::DType y_dtype, int64_t ldy,
                    std::vector<ops::LinearParams>& items) const;
  // out[rows, n] = RMS norm of x[rows, n] (row stride ldx), rows dense. picks [rows]: which row of
  // x each is of; null: the same.
  void norm(const float* x, int64_t ldx, const Vector& weight, double eps, int32_t rows, void* out,
            tensor::DType out_dtype, device::Stream& stream, const int32_t* picks = nullptr) const;
  int64_t act_bytes() const { return tensor::dtype_bytes(options.act, 1); }
  int64_t inter_bytes() const { return tensor::dtype_bytes(options.inter, 1); }
  ops::RopeStyle rope_style() const {
    return config.rope.style == formats::RopeStyle::kHalf ? ops::RopeStyle::kHalf
                                                          : ops::RopeStyle::kInterleaved;
  }
};

// Reads tensors by name and packs them for the device, reporting progress. Errors: as pack_weight,
// and data_loss for what the config asks and the source lacks.
class WeightLoader {
 public:
  using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

  WeightLoader(const formats::WeightSource& weights, device::Device& device, device::Stream& stream,
               const Progress& progress);

  Result<tensor::TensorView> get(const std::string& name) const;
  // A copy of its bytes on the device; they are read when it returns.
  Result<device::Buffer> copy(const tensor::TensorView& view, const std::string& what) const;
  Status vector(const std::string& name, Vector& out) const;
  Result<Vector> upload(const std::vector<float>& values, const std::string& what) const;
  // Below `prefix`: each stem's ".weight", one below the other, and with `bias` its ".bias".
  // Neighbours of one format become one product; a file that mixes formats (K-quant recipes do)
  // gets parts. `act` is the type of the inputs.
  Status linear(const std::string& prefix, const std::vector<std::string>& stems, bool bias,
                tensor::DType act, Linear& out);
  // Views of part of a tensor, or of memory of the caller's: packed as they are, not dropped.
  Status pack(const std::vector<tensor::TensorView>& views, tensor::DType act, Linear& out);
  // One product of each expert, for expert_linear; they stay where they are.
  Result<ops::ExpertWeights> gather(std::vector<const ops::PackedWeight*> experts) {
    return ops::gather_experts(std::move(experts), device_, stream_);
  }
  // The source needs to keep this tensor's memory no longer.
  void done_with(const tensor::TensorView& view);

  // Returns when everything is where it was to go, or with what went wrong.
  Status finish();
  int64_t packed_bytes() const { return packed_bytes_; }

 private:
  const formats::WeightSource& weights_;
  device::Device& device_;
  device::Stream& stream_;
  const Progress& progress_;
  std::shared_ptr<device::Uploader> uploader_;  // held for all packing; null on the CPU
  int64_t packed_bytes_ = 0, done_ = 0;
};

// Scratch of a block, allocated together; what wants no bytes stays empty.
struct Want {
  device::Buffer& buffer;
  int64_t bytes;
  const char* what;
};
Status allocate(std::initializer_list<Want> wants, device::Device& device);

}  // namespace attune::model
