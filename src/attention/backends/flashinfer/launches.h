// The kernels of FlashInfer that this build has, behind plain structs: nothing of FlashInfer's own
// types passes here. Each launch belongs inside Stream::launch, and a failure is the stream's.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace attune::attention::flashinfer {

// One layer's queries, pool and result. Strides count elements; K and V have the same.
struct LayerCall {
  const void* q = nullptr;  // [tokens, q_heads, head_dim] bfloat16, or TileLaunch's
  int64_t q_stride = 0;     // of a token
  void* out = nullptr;      // [tokens, q_heads, head_dim] bfloat16
  int64_t out_stride = 0;   // of a token; only the kernel of sm90 reads it, the others write dense
  float* lse = nullptr;     // [tokens, q_heads], base 2 and never below -5e4; or null
  const void *k = nullptr, *v = nullptr;
  int64_t page_stride = 0, head_stride = 0, token_stride = 0;
  int32_t page_size = 0, q_heads = 0, kv_heads = 0;
  float scale = 0, soft_cap = 0;
  int32_t window = 0;
  bool pdl = false;
  void* stream = nullptr;  // cudaStream_t
};

// Arrays of a batch and of its schedule, in device memory.
struct TileArrays {
  int32_t num_seqs = 0;
  const int32_t *q_indptr = nullptr, *kv_len = nullptr, *page_indptr = nullptr,
                *page_slots = nullptr;
  const uint64_t* tree_mask = nullptr;  // null: none
  bool causal = true;
  // A tile of query rows and a chunk of keys for each block, and which of the blocks have work.
  const int32_t *request = nullptr, *q_tile = nullptr, *kv_chunk = nullptr;  // [blocks]
  const bool* valid = nullptr;                                               // [blocks]
  const int32_t* chunk_tokens = nullptr;                                     // [1]
  const int32_t* o_indptr = nullptr;  // [num_seqs + 1], rows of partial results, or of the output
  int32_t blocks = 0;
  // Where keys are split: partial results, and which of them make a row. Else null.
  void* partial = nullptr;  // bfloat16
  float* partial_lse = nullptr;
  const int32_t* merge_indptr = nullptr;  // [rows + 1]
  const int32_t* rows = nullptr;          // [1]
  int32_t max_rows = 0;                   // fixes the merge's grid
};

enum class TileKind : uint8_t { kCausal, kSoftCap, kTree, kGeneral };

// The FA2 kernel with tensor cores: prefill, and decode where query heads share a KV head. kTree: a
// tree is within one tile, without window and soft cap. kGeneral masks every key by itself: any
// tree, non-causal batches, more queries than keys.
// tile: rows of a block, 16, 64 or 128. A float16 pool takes float16 queries.
using TileLaunch = void (*)(const LayerCall&, const TileArrays&, int32_t tile);
TileLaunch tile_launch(int32_t head_dim, tensor::DType kv_dtype, TileKind kind);

// Rows and their keys for the kernel without tensor cores: one row per block, one query head per KV
// head.
struct RowArrays {
  int32_t num_rows = 0;                 // as many as there may be; fixes the grids
  const int32_t* kv_len = nullptr;      // [num_rows]
  const int32_t* page_start = nullptr;  // [num_rows + 1], the last is the end of page_slots
  const int32_t* page_slots = nullptr;
  const int32_t *row = nullptr, *kv_chunk = nullptr;  // [blocks]
  const bool* valid = nullptr;                        // [blocks]
  const int32_t* chunk_tokens = nullptr;              // [1]
  int32_t blocks = 0;
  void* partial = nullptr;  // null: keys are not split
  float* partial_lse = nullptr;
  const int32_t* merge_indptr = nullptr;  // [rows + 1]
  const int32_t* rows = nullptr;          // [1]
};
using RowLaunch = void (*)(const LayerCall&, const RowArrays&);
struct RowKernel {
  RowLaunch launch = nullptr;
  int (*blocks_per_sm)() = nullptr;
};
RowKernel row_kernel(int32_t head_dim, tensor::DType kv_dtype);

// Whole tiles of one query head for the kernel of sm90: a persistent block for each multiprocessor,
// which does work items [work_indptr[b], work_indptr[b + 1]).
struct HopperArrays {
  int32_t num_tokens = 0;
  const int32_t* page_slots = nullptr;
  const int32_t* work_indptr = nullptr;  // [multiprocessors + 1]
  const int32_t *q_tile = nullptr, *head = nullptr, *q_indptr = nullptr, *kv_indptr = nullptr,
                *q_len = nullptr, *kv_len = nullptr;  // [items]
};
// bfloat16 keys, causal, no window, no soft cap; no sequence with more queries than keys, except
// without keys.
using HopperLaunch = void (*)(const LayerCall&, const HopperArrays&);
HopperLaunch hopper_launch(int32_t head_dim);
int32_t hopper_tile(int32_t head_dim);  // queries of a tile

}  // namespace attune::attention::flashinfer
