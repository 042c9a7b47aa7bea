#include "model/linear.h"

#include <algorithm>

#include "formats/dequant.h"

namespace attune::model {

using tensor::DType;
using tensor::TensorView;

namespace {

// One part's product; its rows of y and bias begin at first_row.
ops::LinearParams product(const Linear& linear, const Linear::Part& part, const void* x,
                          int64_t ldx, int32_t m, void* y, DType y_dtype, int64_t ldy,
                          bool accumulate, bool deterministic) {
  return {.x = x,
          .x_dtype = part.weight.act,
          .ldx = ldx,
          .m = m,
          .weight = &part.weight,
          .bias = linear.bias.n == 0 ? nullptr : linear.bias.data() + part.first_row,
          .y = static_cast<char*>(y) + tensor::dtype_bytes(y_dtype, part.first_row),
          .y_dtype = y_dtype,
          .ldy = ldy,
          .accumulate = accumulate,
          .deterministic = deterministic};
}

}  // namespace

void Context::append_items(const Linear& linear, const void* x, int64_t ldx, int32_t m, void* y,
                           DType y_dtype, int64_t ldy,
                           std::vector<ops::LinearParams>& items) const {
  for (const Linear::Part& part : linear.parts)
    items.push_back(
        product(linear, part, x, ldx, m, y, y_dtype, ldy, false, options.deterministic));
}

void Context::apply(const Linear& linear, const void* x, int64_t ldx, int32_t m, void* y,
                    DType y_dtype, int64_t ldy, device::Stream& stream) const {
  for (const Linear::Part& part : linear.parts)
    ops->linear(product(linear, part, x, ldx, m, y, y_dtype, ldy, false, options.deterministic),
                stream);
}

void Context::add(const Linear& linear, const void* x, int64_t ldx, int32_t m, float* y,
                  int64_t ldy, device::Stream& stream) const {
  for (const Linear::Part& part : linear.parts)
    ops->linear(product(linear, part, x, ldx, m, y, DType::kF32, ldy, true, options.deterministic),
                stream);
}

void Context::norm(const float* x, int64_t ldx, const Vector& weight, double eps, int32_t rows,
                   void* out, DType out_dtype, device::Stream& stream, const int32_t* picks) const {
  ops->rms_norm({.x = x,
                 .ldx = ldx,
                 .weight = weight.data(),
                 .eps = static_cast<float>(eps),
                 .rows = rows,
                 .n = weight.n,
                 .out = out,
                 .ldo = weight.n,
                 .out_dtype = out_dtype,
                 .picks = picks},
                stream);
}

WeightLoader::WeightLoader(const formats::WeightSource& weights, device::Device& device,
                           device::Stream& stream, const Progress& progress)
    : weights_(weights), device_(device), stream_(stream), progress_(progress) {
  if (device.info().kind == device::Kind::kCuda) uploader_ = device::Uploader::of(device);
}

Result<TensorView> WeightLoader::get(const std::string& name) const {
  std::optional<TensorView> view = weights_.find(name);
  if (!view) return data_loss("the model has no tensor '" + name + "', which its config asks for");
  return *view;
}

Result<device::Buffer> WeightLoader::copy(const TensorView& view, const std::string& what) const {
  ATTUNE_ASSIGN_OR_RETURN(device::Buffer buffer, device_.allocate(view.bytes(), what));
  if (uploader_) {
    ATTUNE_RETURN_IF_ERROR(uploader_->copy(buffer.data(), view.data, view.bytes(), stream_));
  } else {
    stream_.copy(buffer.data(), view.data, view.bytes());
    stream_.synchronize();
  }
  ATTUNE_RETURN_IF_ERROR(stream_.status());
  return buffer;
}

Result<Vector> WeightLoader::upload(const std::vector<float>& values,
                                    const std::string& what) const {
  const auto n = static_cast<int64_t>(values.size());
  ATTUNE_ASSIGN_OR_RETURN(device::Buffer buffer,
                          copy({values.data(), DType::kF32, tensor::Shape{n}}, what));
  return Vector{std::move(buffer), static_cast<int32_t>(n)};
}

Status WeightLoader::vector(const std::string& name, Vector& out) const {
  ATTUNE_ASSIGN_OR_RETURN(const TensorView view, get(name));
  std::vector<float> values(static_cast<size_t>(view.shape.elems()));
  ATTUNE_RETURN_IF_ERROR(formats::dequantize(view.dtype, view.data, values));
  ATTUNE_ASSIGN_OR_RETURN(out, upload(values, name));
  return {};
}

Status WeightLoader::pack(const std::vector<TensorView>& views, DType act, Linear& out) {
  int32_t row = 0;
  for (size_t i = 0; i < views.size();) {
    std::vector<TensorView> group;
    do {
      group.push_back(views[i]);
    } while (++i < views.size() && views[i].dtype == group[0].dtype);
    ATTUNE_ASSIGN_OR_RETURN(ops::PackedWeight packed,
                            ops::pack_weight(group, act, device_, stream_));
    packed_bytes_ += packed.bytes();
    const int32_t n = packed.n;
    out.parts.push_back({std::move(packed), row});
    row += n;
  }
  return {};
}

Status WeightLoader::linear(const std::string& prefix, const std::vector<std::string>& stems,
                            bool bias, DType act, Linear& out) {
  std::vector<TensorView> views;
  for (const std::string& stem : stems) {
    ATTUNE_ASSIGN_OR_RETURN(const TensorView view, get(prefix + stem + ".weight"));
    views.push_back(view);
  }
  if (Status status = pack(views, act, out); !status.ok())
    return status.with_context(prefix + stems[0]);
  for (const TensorView& view : views) done_with(view);
  if (!bias) return {};
  std::vector<float> all;
  for (const std::string& stem : stems) {
    ATTUNE_ASSIGN_OR_RETURN(const TensorView view, get(prefix + stem + ".bias"));
    std::vector<float> one(static_cast<size_t>(view.shape.elems()));
    ATTUNE_RETURN_IF_ERROR(formats::dequantize(view.dtype, view.data, one));
    all.insert(all.end(), one.begin(), one.end());
  }
  ATTUNE_ASSIGN_OR_RETURN(out.bias, upload(all, prefix + stems[0] + ".bias"));
  return {};
}

Status WeightLoader::finish() {
  stream_.synchronize();
  return stream_.status();
}

void WeightLoader::done_with(const TensorView& view) {
  done_ += view.bytes();
  weights_.drop(view);
  if (progress_) progress_(std::min(done_, weights_.bytes()), weights_.bytes());
}

Status allocate(std::initializer_list<Want> wants, device::Device& device) {
  for (const Want& want : wants) {
    if (want.bytes == 0) continue;
    ATTUNE_ASSIGN_OR_RETURN(want.buffer, device.allocate(want.bytes, want.what));
  }
  return {};
}

}  // namespace attune::model
