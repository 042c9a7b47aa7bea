// One instance of FlashInfer's FA2 paged kernel (arXiv:2501.01005), with parameters and masks of
// our own: lengths come from the batch's arrays, and token trees are read as they are, 64 bits a
// query, instead of a bit per query and key.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/mask.cuh>

#include "attention/backends/flashinfer/cuda/prefill.cuh"
#include "attention/backends/flashinfer/cuda/tanh.cuh"
#include "attention/backends/flashinfer/launches.h"
#include "attention/backends/flashinfer/tile.h"

namespace attune::attention::flashinfer {

namespace fi = ::flashinfer;

// Tensor cores multiply 16-bit keys by queries of their type.
template <typename KV>
using TileQuery = std::conditional_t<std::is_same_v<KV, half>, half, nv_bfloat16>;
template <typename KV>
using PagedParams = fi::BatchPrefillPagedParams<TileQuery<KV>, KV, nv_bfloat16, int32_t>;

template <typename KV>
struct TileParams : PagedParams<KV> {
  const int32_t* kv_lens;
  const uint64_t* tree;
  bool causal;

  __host__ __device__ __forceinline__ uint32_t get_kv_len(uint32_t s) const { return kv_lens[s]; }
};

// kGeneral decides every key by itself; otherwise the kernel has cut what lies behind a query, and
// asks about the last keys of a tile only. Masks of their own kinds: they cost registers.
template <TileKind kKind>
struct TileVariant : fi::AttentionVariantBase {
  static constexpr bool use_softmax = true;
  static constexpr bool kGeneral = kKind == TileKind::kGeneral;

  uint32_t qo_len, kv_len, window_left;
  float sm_scale_log2, cap_scale = 0;

  template <typename Params>
  __device__ __host__ TileVariant(const Params& params, uint32_t s, uint8_t*) {
    qo_len = params.get_qo_len(s);
    kv_len = params.get_kv_len(s);
    // In the general kernel the window is a matter of the mask: here it would skip keys.
    window_left = !kGeneral && params.window_left >= 0 ? params.window_left : kv_len;
    const bool capped = kKind == TileKind::kSoftCap || (kGeneral && params.logits_soft_cap > 0);
    if (capped) cap_scale = params.sm_scale / params.logits_soft_cap;
    sm_scale_log2 = (capped ? params.logits_soft_cap : params.sm_scale) * fi::math::log2e;
  }

  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    if constexpr (kKind == TileKind::kSoftCap) {
      return static_cast<T>(tanh_of(static_cast<float>(logits) * cap_scale));
    }
    if (kGeneral && cap_scale != 0) {
      return static_cast<T>(tanh_of(static_cast<float>(logits) * cap_scale));
    }
    return logits;
  })

  REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    if constexpr (kKind == TileKind::kCausal || kKind == TileKind::kSoftCap) {
      return kv_idx + qo_len + window_left >= kv_len + qo_idx;
    }
    // A tile has rows beyond its queries.
    if (qo_idx >= qo_len || kv_idx >= kv_len) return false;
    const int32_t prefix = static_cast<int32_t>(kv_len) - static_cast<int32_t>(qo_len);
    const int32_t key = static_cast<int32_t>(kv_idx);
    const uint64_t* tree = params.tree ? params.tree + params.q_indptr[batch_idx] : nullptr;
    const bool in_tree = tree && key >= prefix;
    if constexpr (kGeneral) {
      if (params.window_left >= 0) {
        const int32_t at =
            prefix + (tree ? __popcll(tree[qo_idx]) - 1 : static_cast<int32_t>(qo_idx));
        const int32_t key_at = in_tree ? prefix + __popcll(tree[key - prefix]) - 1 : key;
        if (at - key_at > params.window_left) return false;
      }
      if (!params.causal) return true;
    }
    if (in_tree) return ((tree[qo_idx] >> (key - prefix)) & 1) != 0;
    return tree != nullptr || key <= prefix + static_cast<int32_t>(qo_idx);
  })
};

template <typename KV>
TileParams<KV> tile_params(const LayerCall& c, const TileArrays& a) {
  const auto arg = [](const int32_t* p) { return const_cast<int32_t*>(p); };
  const auto pool = [](const void* p) { return static_cast<KV*>(const_cast<void*>(p)); };
  const int64_t strides[] = {c.page_stride, c.head_stride, c.token_stride};
  const fi::paged_kv_t<KV, int32_t> pages(c.kv_heads, c.page_size, 0, a.num_seqs,
                                          fi::QKVLayout::kHND, pool(c.k), pool(c.v), strides,
                                          arg(a.page_slots), arg(a.page_indptr), nullptr);
  TileParams<KV> p;
  static_cast<PagedParams<KV>&>(p) = {static_cast<TileQuery<KV>*>(const_cast<void*>(c.q)),
                                      pages,
                                      nullptr,
                                      arg(a.q_indptr),
                                      nullptr,
                                      nullptr,
                                      static_cast<nv_bfloat16*>(c.out),
                                      c.lse,
                                      nullptr,
                                      static_cast<uint32_t>(c.q_heads),
                                      static_cast<int32_t>(c.q_stride),
                                      0,
                                      c.window - 1,
                                      c.soft_cap,
                                      c.scale,
                                      1.f,
                                      1.f};
  p.request_indices = arg(a.request);
  p.qo_tile_indices = arg(a.q_tile);
  p.kv_tile_indices = arg(a.kv_chunk);
  p.block_valid_mask = const_cast<bool*>(a.valid);
  p.kv_chunk_size_ptr = arg(a.chunk_tokens);
  p.o_indptr = arg(a.o_indptr);
  p.merge_indptr = arg(a.merge_indptr);
  p.padded_batch_size = a.blocks;
  p.max_total_num_rows = a.max_rows;
  p.total_num_rows = reinterpret_cast<uint32_t*>(arg(a.rows));
  p.kv_lens = a.kv_len;
  p.tree = a.tree_mask;
  p.causal = a.causal;
  return p;
}

template <uint32_t kTile, int kHeadDim, typename KV, TileKind kKind>
void launch_tiles_of(TileParams<KV>& params, const LayerCall& c, const TileArrays& a) {
  constexpr auto kMask =
      kKind == TileKind::kGeneral ? fi::MaskMode::kCustom : fi::MaskMode::kCausal;
  fi::BatchPrefillWithPagedKVCacheDispatched<kTile, kHeadDim, kHeadDim, fi::PosEncodingMode::kNone,
                                             false, kMask, TileVariant<kKind>>(
      params, static_cast<nv_bfloat16*>(a.partial), a.partial_lse, c.pdl,
      static_cast<cudaStream_t>(c.stream));
}

template <int kHeadDim, typename KV, TileKind kKind>
void launch_tiles(const LayerCall& c, const TileArrays& a, int32_t tile) {
  TileParams<KV> params = tile_params<KV>(c, a);
  params.paged_kv.head_dim = kHeadDim;
  params.q_stride_h = kHeadDim;
  if (tile == 16) return launch_tiles_of<16, kHeadDim, KV, kKind>(params, c, a);
  if constexpr (largest_tile(kHeadDim) == 128) {
    if (tile == 128) return launch_tiles_of<128, kHeadDim, KV, kKind>(params, c, a);
  }
  launch_tiles_of<64, kHeadDim, KV, kKind>(params, c, a);
}

}  // namespace attune::attention::flashinfer
