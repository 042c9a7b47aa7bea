// The `linear` and `linear_group` entries of the op tables, one per level. docs/kernels-cpu.md
// tells how they work.
#pragma once

#include "ops/ops.h"

namespace attune::ops::cpu {

void linear_avx2(const LinearParams& p, Stream& stream);
void linear_avx512(const LinearParams& p, Stream& stream);       // avx512_vnni too
void linear_avx512_bf16(const LinearParams& p, Stream& stream);  // also float32 activations

void linear_group_avx2(const LinearParams* items, int32_t count, Stream& stream);
void linear_group_avx512(const LinearParams* items, int32_t count, Stream& stream);
void linear_group_avx512_bf16(const LinearParams* items, int32_t count, Stream& stream);

}  // namespace attune::ops::cpu
