#include "model/transpose.h"

#include <cstring>
#include <vector>

#include "formats/dequant.h"

namespace attune::model {
namespace {

using tensor::DType;

template <typename T>
void turn(const std::byte* in, int64_t n, int64_t k, std::byte* out) {
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < k; ++c)
      std::memcpy(out + (c * n + r) * sizeof(T), in + (r * k + c) * sizeof(T), sizeof(T));
}

}  // namespace

Result<Transposed> transpose(const tensor::TensorView& view) {
  const int64_t n = view.shape[0], k = view.shape[1];
  const bool two = view.dtype == DType::kBF16 || view.dtype == DType::kF16;
  Transposed out;
  out.memory = std::make_unique<std::byte[]>(static_cast<size_t>(n * k * (two ? 2 : 4)));
  out.view = {out.memory.get(), two ? view.dtype : DType::kF32, tensor::Shape{k, n}};
  const auto* in = static_cast<const std::byte*>(view.data);
  if (two) {
    turn<uint16_t>(in, n, k, out.memory.get());
    return out;
  }
  std::vector<float> wide(static_cast<size_t>(n * k));
  ATTUNE_RETURN_IF_ERROR(formats::dequantize(view.dtype, view.data, wide));
  turn<float>(reinterpret_cast<const std::byte*>(wide.data()), n, k, out.memory.get());
  return out;
}

}  // namespace attune::model
