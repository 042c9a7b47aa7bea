// One instance of FlashInfer's decode kernel without tensor cores, for one query head per KV head.
// It reads query row i for "request" i, so rows are what it is given, each with its own keys.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/variant_helper.cuh>

#include "attention/backends/flashinfer/cuda/tanh.cuh"
#include "attention/backends/flashinfer/launches.h"

namespace attune::attention::flashinfer {

namespace fi = ::flashinfer;

// Lengths by row; the page list gives starts only.
template <typename KV>
struct RowPages : fi::paged_kv_t<KV, int32_t> {
  const int32_t* kv_lens = nullptr;
  __host__ __device__ __forceinline__ uint32_t get_length(uint32_t row) const {
    return kv_lens[row];
  }
};

template <typename KV>
struct RowParams {
  using DTypeQ = nv_bfloat16;
  using DTypeKV = KV;
  using DTypeO = nv_bfloat16;
  using IdType = int32_t;

  const nv_bfloat16* q;
  RowPages<KV> paged_kv;
  nv_bfloat16* o;
  float* lse;
  float sm_scale, logits_soft_cap;
  uint32_t num_qo_heads, padded_batch_size;
  int32_t q_stride_n, q_stride_h;
  const int32_t *request_indices, *kv_tile_indices, *kv_chunk_size_ptr;
  const bool* block_valid_mask;
  bool partition_kv;
};

struct RowVariant : fi::AttentionVariantBase {
  static constexpr bool use_softmax = true;
  uint32_t kv_len;
  float sm_scale_log2, cap_scale = 0;

  template <typename Params>
  __device__ __host__ RowVariant(const Params& params, uint32_t row, uint8_t*) {
    kv_len = params.paged_kv.get_length(row);
    const bool capped = params.logits_soft_cap > 0;
    if (capped) cap_scale = params.sm_scale / params.logits_soft_cap;
    sm_scale_log2 = (capped ? params.logits_soft_cap : params.sm_scale) * fi::math::log2e;
  }

  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    if (cap_scale != 0) return tanh_of(logits * cap_scale);
    return logits;
  })
};

// The shape that FlashInfer's own dispatch gives a group of one (decode.cuh).
template <int kHeadDim, typename KV>
struct RowShape {
  static constexpr uint32_t kVec = std::max<uint32_t>(16 / sizeof(KV), kHeadDim / 32);
  static constexpr uint32_t kX = kHeadDim / kVec, kZ = 128 / kX, kStages = 2;
  static constexpr uint32_t kTile = sizeof(KV) == 1 ? 2 : 4;
  static constexpr uint32_t kSharedBytes =
      2 * kStages * kTile * kZ * kHeadDim * sizeof(KV) +
      std::max<uint32_t>(kTile * 128 * sizeof(KV*), 2 * kZ * sizeof(float));
  static constexpr auto kernel() {
    return fi::BatchDecodeWithPagedKVCacheKernel<fi::PosEncodingMode::kNone, kStages, kTile, kVec,
                                                 kX, 1, kZ, RowVariant, RowParams<KV>>;
  }
};

template <int kHeadDim, typename KV>
int row_blocks_per_sm() {
  using Shape = RowShape<kHeadDim, KV>;
  int blocks = 0;
  cudaFuncSetAttribute(Shape::kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                       Shape::kSharedBytes);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, Shape::kernel(), 128, Shape::kSharedBytes);
  return blocks;
}

template <int kHeadDim, typename KV>
void launch_rows(const LayerCall& c, const RowArrays& a) {
  using Shape = RowShape<kHeadDim, KV>;
  const auto arg = [](const int32_t* p) { return const_cast<int32_t*>(p); };
  const auto pool = [](const void* p) { return static_cast<KV*>(const_cast<void*>(p)); };
  const int64_t strides[] = {c.page_stride, c.head_stride, c.token_stride};
  RowParams<KV> p{};
  const fi::paged_kv_t<KV, int32_t> pages(c.kv_heads, c.page_size, kHeadDim, a.num_rows,
                                          fi::QKVLayout::kHND, pool(c.k), pool(c.v), strides,
                                          arg(a.page_slots), arg(a.page_start), nullptr);
  static_cast<fi::paged_kv_t<KV, int32_t>&>(p.paged_kv) = pages;
  p.paged_kv.kv_lens = a.kv_len;
  p.q = static_cast<const nv_bfloat16*>(c.q);
  p.o = static_cast<nv_bfloat16*>(a.partial ? a.partial : c.out);
  p.lse = a.partial ? a.partial_lse : c.lse;
  p.sm_scale = c.scale;
  p.logits_soft_cap = c.soft_cap;
  p.num_qo_heads = c.q_heads;
  p.padded_batch_size = a.blocks;
  p.q_stride_n = static_cast<int32_t>(c.q_stride);
  p.q_stride_h = kHeadDim;
  p.request_indices = a.row;
  p.kv_tile_indices = a.kv_chunk;
  p.kv_chunk_size_ptr = a.chunk_tokens;
  p.block_valid_mask = a.valid;
  p.partition_kv = a.partial != nullptr;
  cudaFuncSetAttribute(Shape::kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                       Shape::kSharedBytes);
  cudaLaunchAttribute pdl{};
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(a.blocks, c.kv_heads);
  config.blockDim = dim3(Shape::kX, 1, Shape::kZ);
  config.dynamicSmemBytes = Shape::kSharedBytes;
  config.stream = static_cast<cudaStream_t>(c.stream);
  config.attrs = &pdl;
  config.numAttrs = c.pdl ? 1 : 0;
  cudaLaunchKernelEx(&config, Shape::kernel(), p);
  if (!a.partial) return;
  fi::VariableLengthMergeStates(static_cast<nv_bfloat16*>(a.partial), a.partial_lse,
                                arg(a.merge_indptr), static_cast<nv_bfloat16*>(c.out), c.lse,
                                a.num_rows, reinterpret_cast<uint32_t*>(arg(a.rows)), c.q_heads,
                                kHeadDim, c.pdl, config.stream);
}

}  // namespace attune::attention::flashinfer
