// The `linear` and `linear_group` entries of the op tables, one per level. docs/kernels-cpu.md
// tells how they work.
#pragma once

#include "ops/gemm/gemm.h"
#include "ops/ops.h"

namespace attune::ops::cpu {

void linear_avx2(const LinearParams& p, Stream& stream);
void linear_avx512(const LinearParams& p, Stream& stream);       // avx512_vnni too
void linear_avx512_bf16(const LinearParams& p, Stream& stream);  // also float32 activations

void linear_group_avx2(const LinearParams* items, int32_t count, Stream& stream);
void linear_group_avx512(const LinearParams* items, int32_t count, Stream& stream);
void linear_group_avx512_bf16(const LinearParams* items, int32_t count, Stream& stream);

// The experts' products as groups.
template <void (*kLinearGroup)(const LinearParams*, int32_t, Stream&)>
void expert_linear(const ExpertLinearParams& p, Stream& stream) {
  constexpr int32_t kMost = 128;
  LinearParams items[kMost];
  const auto experts = static_cast<int32_t>(p.weights->weights.size());
  const int64_t x_bytes = tensor::dtype_bytes(p.x_dtype, 1), y_bytes = 4;
  int32_t count = 0;
  for (int32_t e = 0; e < experts; ++e) {
    const int64_t first = p.offsets[e];
    if (p.offsets[e + 1] > first)
      items[count++] = {.x = static_cast<const char*>(p.x) + first * p.ldx * x_bytes,
                        .x_dtype = p.x_dtype,
                        .ldx = p.ldx,
                        .m = static_cast<int32_t>(p.offsets[e + 1] - first),
                        .weight = p.weights->weights[static_cast<size_t>(e)],
                        .bias = nullptr,
                        .y = static_cast<char*>(p.y) + first * p.ldy * y_bytes,
                        .y_dtype = p.y_dtype,
                        .ldy = p.ldy,
                        .accumulate = false,
                        .deterministic = p.deterministic};
    if (count == kMost || (e + 1 == experts && count > 0)) {
      kLinearGroup(items, count, stream);
      count = 0;
    }
  }
}

}  // namespace attune::ops::cpu
