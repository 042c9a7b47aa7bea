#include <algorithm>

#include "ops/cpu_kernels.h"
#include "ops/embed/cpu/dequant_row.h"

namespace attune::ops::cpu {

void embed(const EmbedParams& p, Stream& stream) {
  const int64_t table_row_bytes = tensor::dtype_bytes(p.table_dtype, p.hidden);
  const char* table = static_cast<const char*>(p.table);
  for_rows(stream, p.tokens, int64_t{p.hidden} * 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = p.out + t * p.hidden;
      if (p.ids[t] < 0 || p.ids[t] >= p.vocab) {
        std::fill_n(out, p.hidden, 0.0f);
        continue;
      }
      dequant_row(p.table_dtype, table + p.ids[t] * table_row_bytes, p.hidden, out);
      if (p.scale == 1.0f) continue;
      for (int32_t i = 0; i < p.hidden; ++i) out[i] *= p.scale;
    }
  });
}

}  // namespace attune::ops::cpu
