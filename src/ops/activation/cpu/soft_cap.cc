#include <cmath>

#include "ops/cpu_kernels.h"

namespace attune::ops::cpu {

void soft_cap(const SoftCapParams& p, Stream& stream) {
  stream.pool().parallel_for(p.count, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) p.x[i] = p.cap * std::tanh(p.x[i] / p.cap);
  });
}

}  // namespace attune::ops::cpu
