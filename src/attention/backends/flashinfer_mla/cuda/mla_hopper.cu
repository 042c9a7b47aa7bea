#include <flashinfer/attention/mla_hopper.cuh>

#include "attention/backends/flashinfer_mla/cuda/mla_params.cuh"

namespace attune::attention::flashinfer_mla {

void launch_hopper(const MlaCall& call) {
  ::flashinfer::mla::BatchMLAPageAttentionHopper<::flashinfer::MaskMode::kCausal, 512, 64>(
      mla_params(call), call.cluster, call.clusters, static_cast<cudaStream_t>(call.stream));
}

}  // namespace attune::attention::flashinfer_mla
