// What packing is for all devices.
#include "base/log.h"
#include "ops/gemm/gemm.h"

namespace attune::ops {

Result<PackedWeight> pack_weight(const std::vector<tensor::TensorView>& parts, tensor::DType act,
                                 device::Device& device, device::Stream& stream) {
  return device.info().kind == device::Kind::kCuda ? cuda::pack_weight(parts, act, device, stream)
                                                   : cpu::pack_weight(parts, act, device, stream);
}

Result<ExpertWeights> gather_experts(std::vector<const PackedWeight*> weights,
                                     device::Device& device, device::Stream& stream) {
  std::vector<const void*> data;
  for (const PackedWeight* w : weights) {
    const PackedWeight& head = *weights[0];
    if (w->n != head.n || w->k != head.k || w->layout != head.layout || w->act != head.act)
      return invalid_argument(base::cat(
          "experts of one layer differ: ", tensor::dtype_name(w->source), " [", w->n, ", ", w->k,
          "] and ", tensor::dtype_name(head.source), " [", head.n, ", ", head.k, "]"));
    data.push_back(w->data.data());
  }
  ExpertWeights experts{std::move(weights), {}};
  if (device.info().kind != device::Kind::kCuda || data.empty()) return experts;
  const auto count = static_cast<int64_t>(data.size());
  if (count > kMostGpuExperts || experts.weights[0]->act != tensor::DType::kBF16)
    return unsupported(
        base::cat(count, " experts of a layer with ", tensor::dtype_name(experts.weights[0]->act),
                  " activations: on a GPU they are ", kMostGpuExperts,
                  " at most, with bfloat16 ones; use --dtype bfloat16 or --device cpu"));
  const auto bytes = static_cast<int64_t>(data.size() * sizeof(data[0]));
  ATTUNE_ASSIGN_OR_RETURN(experts.table, device.allocate(bytes, "experts' places"));
  stream.copy(experts.table.data(), data.data(), bytes);
  stream.synchronize();
  ATTUNE_RETURN_IF_ERROR(stream.status());
  return experts;
}

}  // namespace attune::ops
