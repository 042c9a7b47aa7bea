#include <cstring>

#include "base/check.h"
#include "ops/cpu_kernels.h"
#include "ops/rope/cpu/rotate.h"

namespace attune::ops::cpu {

void rope(const RopeParams& p, Stream& stream) {
  constexpr int32_t kMaxRotDim = 1024;
  ATTUNE_CHECK(p.rot_dim <= kMaxRotDim);
  const int32_t half = p.rot_dim / 2;
  for_rows(stream, p.tokens, int64_t{p.heads} * p.rot_dim * 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int32_t h = 0; h < p.heads; ++h) {
        float y[kMaxRotDim];  // out may be x
        rotate_pairs(p.x + t * p.ldx + h * p.head_stride, p.cos + t * half, p.sin + t * half, half,
                     p.style, y);
        std::memcpy(static_cast<float*>(p.out) + t * p.ldo + h * p.out_head_stride, y,
                    static_cast<size_t>(p.rot_dim) * 4);
      }
    }
  });
}

}  // namespace attune::ops::cpu
