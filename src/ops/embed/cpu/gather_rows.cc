#include <cstring>

#include "ops/cpu_kernels.h"

namespace attune::ops::cpu {

void gather_rows(const GatherRowsParams& p, Stream& stream) {
  const int64_t row_bytes = int64_t{p.n} * 4;
  for_rows(stream, p.count, 2 * row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::memcpy(p.out + r * p.n, p.x + int64_t{p.rows[r]} * p.ldx, row_bytes);
  });
}

}  // namespace attune::ops::cpu
