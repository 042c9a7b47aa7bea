#include <cstring>

#include "ops/cpu_kernels.h"

namespace attune::ops::cpu {

void bulk_read(const BulkReadParams& p, Stream& stream) {
  constexpr int64_t kPiece = 1 << 20;
  stream.pool().parallel_for(p.bytes / 8, kPiece / 8, [&](int64_t begin, int64_t end) {
    const uint64_t* words = static_cast<const uint64_t*>(p.data);
    uint64_t lanes[8] = {};
    int64_t i = begin;
    for (; i + 8 <= end; i += 8)
      for (int k = 0; k < 8; ++k) lanes[k] ^= words[i + k];
    for (; i < end; ++i) lanes[0] ^= words[i];
    for (int k = 1; k < 8; ++k) lanes[0] ^= lanes[k];
    if (lanes[0] == p.unlikely) *p.sink = 1;
  });
}

}  // namespace attune::ops::cpu
