#include <flashinfer/attention/mla.cuh>

#include "attention/backends/flashinfer_mla/cuda/mla_params.cuh"

namespace attune::attention::flashinfer_mla {

void launch_fa2(const MlaCall& call) {
  ::flashinfer::mla::BatchMLAPagedAttention<::flashinfer::MaskMode::kCausal, 512, 64>(
      mla_params(call), call.cluster, call.clusters, static_cast<cudaStream_t>(call.stream));
}

}  // namespace attune::attention::flashinfer_mla
