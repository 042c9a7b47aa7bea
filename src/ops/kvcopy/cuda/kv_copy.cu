#include "ops/cuda_kernels.h"
#include "ops/kvcopy/kvcopy.h"
namespace attune::ops::cuda {
void kv_copy(const KvCopyParams&, Stream&) {}
}  // namespace attune::ops::cuda
