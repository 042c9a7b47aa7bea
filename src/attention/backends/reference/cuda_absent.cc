// In place of reference_cuda.cu in a build without CUDA, which has no device to come here with.
#include "attention/backends/reference/reference_cuda.h"
#include "base/check.h"

namespace attune::attention::reference {

void run_on_gpu(const Batch&, const LayerParams&, const kv::PagedKvView&, const Io&,
                device::Stream&) {
  ATTUNE_CHECK(!"a CUDA device in a build without CUDA");
}

}  // namespace attune::attention::reference
