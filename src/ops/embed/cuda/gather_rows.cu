#include "ops/copy_rows.cuh"
#include "ops/cuda_kernels.h"

namespace attune::ops::cuda {

void gather_rows(const GatherRowsParams& p, Stream& stream) {
  copy_rows_as_bytes(stream, "gather_rows", p.x, p.ldx * 4, p.rows, p.count, int64_t{p.n} * 4,
                     p.out);
}

}  // namespace attune::ops::cuda
