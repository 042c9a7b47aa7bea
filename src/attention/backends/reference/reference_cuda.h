// The same definition as a kernel.
#pragma once

#include "attention/backend.h"

namespace attune::attention::reference {

// One layer of a batch on the GPU, from its arrays in device memory. float32 arithmetic. The grid
// depends on num_tokens and heads alone; tokens of no sequence give output 0 and LSE -inf. Inside
// Stream::launch.
void run_on_gpu(const Batch& batch, const LayerParams& layer, const kv::PagedKvView& kv,
                const Io& io, device::Stream& stream);

}  // namespace attune::attention::reference
