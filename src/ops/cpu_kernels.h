// The CPU's small ops, by the names that cpu_table.cc uses: x86-64-v3 units that serve every level,
// since all of them are bound by memory. A row's result depends on that row alone. Parameters:
// ops.h.
#pragma once

#include "ops/ops.h"

namespace attune::ops::cpu {

void embed(const EmbedParams& p, Stream& stream);
void rms_norm(const RmsNormParams& p, Stream& stream);
void rope_table(const RopeTableParams& p, Stream& stream);
void rope_append(const RopeAppendParams& p, Stream& stream);
void silu_mul(const SiluMulParams& p, Stream& stream);
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

// fn(begin, end) over `rows` rows of `row_bytes` memory traffic each: on the pool only when the
// work outweighs the hand-over (about 1-2 us, some 32 KiB of traffic).
template <typename Fn>
void for_rows(Stream& stream, int64_t rows, int64_t row_bytes, Fn&& fn) {
  constexpr int64_t kInlineBytes = 64 << 10, kPieceBytes = 32 << 10;
  if (rows * row_bytes <= kInlineBytes) {
    if (rows > 0) fn(int64_t{0}, rows);
    return;
  }
  const int64_t grain = kPieceBytes / row_bytes;
  stream.pool().parallel_for(rows, grain > 0 ? grain : 1, fn);
}

}  // namespace attune::ops::cpu
