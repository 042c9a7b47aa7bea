// The CUDA ops, by the names that cuda_table.cc uses; they lie in each op's cuda/. They only
// launch, on the stream; every pointer of their parameters is the device's but for those that are
// said to be the host's. A row's result depends on that row alone. Parameters: ops.h.
#pragma once

#include "ops/ops.h"

namespace attune::ops::cuda {

void embed(const EmbedParams& p, Stream& stream);
void rms_norm(const RmsNormParams& p, Stream& stream);
void rope_table(const RopeTableParams& p, Stream& stream);
void rope_append(const RopeAppendParams& p, Stream& stream);
void silu_mul(const SiluMulParams& p, Stream& stream);
void linear(const LinearParams& p, Stream& stream);
void linear_group(const LinearParams* items /* host */, int32_t count, Stream& stream);
void expert_linear(const ExpertLinearParams& p, Stream& stream);
void soft_cap(const SoftCapParams& p, Stream& stream);
void rope(const RopeParams& p, Stream& stream);
void latent_append(const LatentAppendParams& p, Stream& stream);
void latent_gather(const LatentGatherParams& p, Stream& stream);
void cast(const CastParams& p, Stream& stream);
void moe_route(const MoeRouteParams& p, Stream& stream);
void moe_sort(const MoeSortParams& p, Stream& stream);
void copy_rows(const CopyRowsParams& p, Stream& stream);
void moe_combine(const MoeCombineParams& p, Stream& stream);
void bulk_read(const BulkReadParams& p, Stream& stream);
void merge_state(const MergeStateParams& p, Stream& stream);
void kv_copy(const KvCopyParams& p, Stream& stream);

}  // namespace attune::ops::cuda
