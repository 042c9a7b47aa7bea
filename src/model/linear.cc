#include "model/linear.h"

#include <algorithm>

#include "formats/dequant.h"

namespace attune::model {

using tensor::DType;
using tensor::TensorView;

namespace {

// One part's product; its rows of y and bias begin at first_row.
ops::LinearParams product(const Linear& linear, const Linear::Part& part, const void* x,
                          int64_t ldx, int32_t m, float* y, int64_t ldy, bool accumulate,
                          bool deterministic) {
  return {.x = x,
          .x_dtype = part.weight.act,
          .ldx = ldx,
          .m = m,
          .weight = &part.weight,
          .bias = linear.bias.empty() ? nullptr : linear.bias.data() + part.first_row,
          .y = y + part.first_row,
          .ldy = ldy,
          .accumulate = accumulate,
          .deterministic = deterministic};
}

}  // namespace

void Context::append_items(const Linear& linear, const void* x, int64_t ldx, int32_t m, float* y,
                           int64_t ldy, std::vector<ops::LinearParams>& items) const {
  for (const Linear::Part& part : linear.parts)
    items.push_back(product(linear, part, x, ldx, m, y, ldy, false, options.deterministic));
}

void Context::apply(const Linear& linear, const void* x, int64_t ldx, int32_t m, float* y,
                    int64_t ldy, bool accumulate, device::Stream& stream) const {
  for (const Linear::Part& part : linear.parts)
    ops->linear(product(linear, part, x, ldx, m, y, ldy, accumulate, options.deterministic),
                stream);
}

void Context::norm(const float* x, int64_t ldx, const std::vector<float>& weight, double eps,
                   int32_t rows, void* out, DType out_dtype, device::Stream& stream) const {
  const auto n = static_cast<int32_t>(weight.size());
  ops->rms_norm({.x = x,
                 .ldx = ldx,
                 .weight = weight.data(),
                 .eps = static_cast<float>(eps),
                 .rows = rows,
                 .n = n,
                 .out = out,
                 .ldo = n,
                 .out_dtype = out_dtype},
                stream);
}

Result<TensorView> WeightLoader::get(const std::string& name) const {
  std::optional<TensorView> view = weights_.find(name);
  if (!view) return data_loss("the model has no tensor '" + name + "', which its config asks for");
  return *view;
}

Status WeightLoader::vector(const std::string& name, std::vector<float>& out) const {
  ATTUNE_ASSIGN_OR_RETURN(const TensorView view, get(name));
  out.resize(static_cast<size_t>(view.shape.elems()));
  return formats::dequantize(view.dtype, view.data, out);
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
  for (const std::string& stem : stems) {
    std::vector<float> one;
    ATTUNE_RETURN_IF_ERROR(vector(prefix + stem + ".bias", one));
    out.bias.insert(out.bias.end(), one.begin(), one.end());
  }
  return {};
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
