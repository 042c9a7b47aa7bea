#include <cmath>

#include "ops/cpu_kernels.h"

namespace attune::ops::cpu {

// The angle is rounded to float32 as in transformers, whose goldens we match; its cosine and sine
// are then exact to the last bit or so.
void rope_table(const RopeTableParams& p, Stream& stream) {
  const int32_t half = p.rot_dim / 2;
  // A sincos costs some 20 ns: like 256 bytes of traffic.
  for_rows(stream, p.tokens, int64_t{half} * 256, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int32_t i = 0; i < half; ++i) {
        const double angle = float(p.positions[t]) * p.inv_freq[i];
        p.cos[t * half + i] = float(std::cos(angle)) * p.magnitude;
        p.sin[t * half + i] = float(std::sin(angle)) * p.magnitude;
      }
    }
  });
}

}  // namespace attune::ops::cpu
