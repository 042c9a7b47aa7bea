// The kernels of a model step, as one table of functions per device. Kernels take raw pointers and
// plain parameter structs; they never log nor allocate, and are called inside Stream::launch. "act"
// is the activation type of the matrix products' inputs: float32, or bfloat16 where the device has
// it; the residual stream, the products' outputs and the logits are float32 always.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "tensor/dtype.h"

namespace attune::ops {

using device::Stream;
using tensor::DType;

struct PackedWeight;   // ops/gemm/gemm.h
struct ExpertWeights;  // the same
struct KvCopyParams;   // ops/kvcopy/kvcopy.h

// x[t, :] = table[ids[t], :], in float32; zeros for an id outside of [0, vocab).
struct EmbedParams {
  const int32_t* ids;  // [tokens]
  int32_t tokens;
  const void* table;  // [vocab, hidden], row-major, any float or quantised dtype
  int32_t vocab;
  DType table_dtype;
  int32_t hidden;
  float scale;  // 1, or a family's embedding multiplier
  float* out;   // [tokens, hidden]
};

// out = x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich, arXiv:1910.07467).
struct RmsNormParams {
  const float* x;  // [rows, n], row stride ldx
  int64_t ldx;
  const float* weight;  // [n]
  float eps;
  int32_t rows, n;
  void* out;  // [rows, n], row stride ldo (elements)
  int64_t ldo;
  DType out_dtype;  // float32 or bfloat16
  // [rows]: which row of x each row of out is of (the last tokens of each sequence before the
  // head); null: the same.
  const int32_t* picks = nullptr;
};

// cos/sin of every token's position, once per step, for all layers.
struct RopeTableParams {
  const int32_t* positions;  // [tokens]
  int32_t tokens;
  const float* inv_freq;  // [rot_dim/2], scaling already applied (model/rope.h)
  int32_t rot_dim;
  float magnitude;  // 1; yarn's attention factor otherwise
  float* cos;       // [tokens, rot_dim/2]
  float* sin;       // [tokens, rot_dim/2]
};

enum class RopeStyle : uint8_t {
  kHalf,         // pairs (i, i + rot_dim/2): Hugging Face and GPT-NeoX
  kInterleaved,  // pairs (2i, 2i+1): GGUF's permuted llama weights
};

// From the fused qkv product: optional per-head RMSNorm of q and k (Qwen3), rotary embedding
// (arXiv:2104.09864), then q goes to its buffer and k, v into their pages.
struct RopeAppendParams {
  const void* qkv;  // [tokens, (q_heads + 2*kv_heads) * head_dim], row stride ldqkv
  DType dtype;      // of qkv and q_out: float32; on a GPU also bfloat16
  int64_t ldqkv;
  int32_t tokens, q_heads, kv_heads, head_dim, rot_dim;
  RopeStyle style;
  const float* cos;  // [tokens, rot_dim/2]
  const float* sin;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;  // [head_dim] or null
  float norm_eps;
  void* q_out;  // [tokens, q_heads, head_dim]
  // Where token t's k and v go: slot_mapping[t] = device_slot * page_size + offset in page; -1:
  // nowhere.
  const int64_t* slot_mapping;  // [tokens]
  void* kv_base;                // one layer's pages: kv/layout/layout.h
  DType kv_dtype;        // float32, float16, bfloat16; fp8: too large becomes the largest finite
  int64_t page_stride;   // bytes from one page to the next
  int64_t head_stride;   // bytes, inside K or V of a page
  int64_t token_stride;  // bytes, inside K or V of a page
  int64_t v_offset;      // bytes from a page's K to its V
  int32_t page_size;
  // What is stored is k / k_scale and v / v_scale; readers multiply.
  float k_scale = 1, v_scale = 1;
  // A token that begins a page zeroes the rest of it, but for the slots that tokens of this call
  // fill: nothing that an earlier owner left, NaN above all, is there for attention that multiplies
  // what it masks (attention/capabilities.h, reads_past_end). REQUIRES: of one page the tokens of a
  // call follow each other.
  bool clear_rest = false;
};

// x = cap * tanh(x / cap).
struct SoftCapParams {
  float* x;  // [count]
  int64_t count;
  float cap;
};

// Rotates part of every head: out[t, h, :rot_dim] from x[t, h, :rot_dim]; out may be x.
struct RopeParams {
  const float* x;  // element (t, h, i) at t * ldx + h * head_stride + i
  int64_t ldx, head_stride;
  int32_t tokens, heads, rot_dim;
  RopeStyle style;
  const float* cos;  // [tokens, rot_dim/2]
  const float* sin;
  void* out;
  DType out_dtype;  // float32; on a GPU also bfloat16
  int64_t ldo, out_head_stride;
};

// Latent attention's row of a token, [RMS norm of the latent | rotated key], into its page.
struct LatentAppendParams {
  const float* kv;  // [tokens, latent_dim + rot_dim], row stride ldkv
  int64_t ldkv;
  int32_t tokens, latent_dim, rot_dim;
  RopeStyle style;
  const float* cos;  // [tokens, rot_dim/2]
  const float* sin;
  const float* norm;  // [latent_dim]
  float norm_eps;
  const int64_t* slot_mapping;  // [tokens], see RopeAppendParams
  void* kv_base;
  DType kv_dtype;                     // see RopeAppendParams
  int64_t page_stride, token_stride;  // bytes
  int32_t page_size;
  float kv_scale = 1;  // what is stored is divided by it
};

// Those rows out of the pages: the latents for the up-projection, and the rotated key as the tail
// of every head's key.
struct LatentGatherParams {
  const int64_t* positions;  // [rows], slot * page_size + offset; -1: zeros
  int32_t rows, latent_dim, rot_dim, heads;
  const void* kv_base;
  DType kv_dtype;
  int64_t page_stride, token_stride;  // bytes
  int32_t page_size;
  void* latents;       // [rows, latent_dim]
  DType latent_dtype;  // float32, float16 or bfloat16
  void* rope;          // (row, head, i) at row * rope_row_stride + head * rope_head_stride + i
  DType rope_dtype;    // float32 or bfloat16
  int64_t rope_row_stride, rope_head_stride;
  float kv_scale = 1;  // what was stored is multiplied by it
};

// out = x in another type, row by row.
struct CastParams {
  const float* x;  // element (r, h, i) at r * ldx + h * head_stride + i
  int64_t ldx, head_stride;
  int32_t rows, heads, n;
  void* out;  // [rows, heads, n]
  DType out_dtype;
};

// out = silu(gate) * up, from the fused product [rows, 2n]: gate in the first n columns.
struct SiluMulParams {
  const void* gate_up;  // [rows, 2n], row stride ldx
  DType x_dtype;        // float32; on a GPU also bfloat16
  int64_t ldx;
  int32_t rows, n;
  void* out;  // [rows, n]
  int64_t ldo;
  DType out_dtype;
};

// y[m, n] (+)= sum_k x[m, k] * w[n, k] (+ bias[n]).
struct LinearParams {
  const void* x;  // [m, k], row stride ldx (elements)
  DType x_dtype;  // float32, or bfloat16 if the weight was packed for it
  int64_t ldx;
  int32_t m;
  const PackedWeight* weight;  // n, k and format within
  const float* bias;           // [n] or null
  void* y;                     // [m, n], row stride ldy
  DType y_dtype;               // float32; on a GPU also bfloat16, not to be accumulated
  int64_t ldy;
  bool accumulate;     // add to y (the residual) instead of overwriting it
  bool deterministic;  // a row's result must not depend on m, to the bit
};

// Of each expert e its rows r in [offsets[e], offsets[e + 1]): y[r, n] = sum_k x[r, k] * w_e[n, k].
// A row's result depends on that row alone if `deterministic`; on a GPU always.
struct ExpertLinearParams {
  const void* x;  // [rows, k], row stride ldx (elements), ordered by expert; on a GPU every row
                  // begins at a multiple of 16 bytes
  DType x_dtype;
  int64_t ldx;
  int32_t rows;            // offsets[experts]
  const int32_t* offsets;  // [experts + 1], where the device has it
  const ExpertWeights* weights;
  void* y;  // [rows, n], row stride ldy
  DType y_dtype;
  int64_t ldy;
  bool deterministic;
};

// Of each token the experts and their weights (DeepSeek-V2, arXiv:2405.04434 2.1.2; V3,
// arXiv:2412.19437 2.1.2). Equal scores: the lower index goes first.
struct MoeRouteParams {
  const float* logits;  // [tokens, experts]
  int32_t tokens, experts, top_k;
  bool sigmoid;                // scores; else softmax
  const float* bias;           // [experts] or null: added to the scores for the choice alone
  int32_t groups, top_groups;  // 1, 1: no groups
  bool group_top2;             // a group's score is the sum of its two best, else its best
  bool normalize;              // the chosen weights sum to 1
  float scale;                 // of all weights, in the end
  int32_t* ids;                // [tokens, top_k], best first
  float* weights;              // [tokens, top_k]
};

// Orders (token, expert) pairs by expert, tokens rising within: expert e has rows [offsets[e],
// offsets[e + 1]).
struct MoeSortParams {
  const int32_t* ids;  // [tokens, top_k]
  int32_t tokens, top_k, experts;
  int32_t* offsets;       // [experts + 1]
  int32_t* token_of_row;  // [tokens * top_k]
  int32_t* row_of_pair;   // [tokens, top_k]
};

// out[i] = x[rows[i]], bytes.
struct CopyRowsParams {
  const void* x;
  int64_t ldx;          // bytes
  const int32_t* rows;  // [count]
  int32_t count;
  int64_t row_bytes;
  void* out;  // [count] rows of row_bytes
};

// out[t] += sum_j weights[t, j] * y[row_of_pair[t, j]], in the order of j.
struct MoeCombineParams {
  const float* y;              // [tokens * top_k, n]
  const int32_t* row_of_pair;  // [tokens, top_k]
  const float* weights;        // [tokens, top_k]
  int32_t tokens, top_k, n;
  float* out;  // [tokens, n], row stride ldo
  int64_t ldo;
};

// Reads `bytes` bytes (a multiple of 16384) at the rate that the memory allows, and does nothing
// with them: what memory-bound kernels are measured against.
struct BulkReadParams {
  const void* data;
  int64_t bytes;
  uint64_t unlikely;  // written nowhere but if some word's sum is this: keeps the loads alive
  uint64_t* sink;     // [1]
};

// Two attention results over disjoint sets of keys become the one over their union, weighted by
// exp(lse) (online softmax: Milakov & Gimelshein, arXiv:1805.02867). out and lse hold the first and
// become the union. An LSE of -inf: that result saw no key and is not read; the other one is kept
// bit for bit. Both: out and lse stay as they are.
struct MergeStateParams {
  const void* part;       // [tokens, heads, v_dim]
  const float* part_lse;  // [tokens, heads], natural log
  int32_t tokens, heads, v_dim;
  void* out;                  // [tokens, heads, v_dim]
  float* lse;                 // [tokens, heads]
  DType dtype = DType::kF32;  // of part and out: float32; on a GPU also bfloat16
};

struct OpTable {
  void (*embed)(const EmbedParams&, Stream&);
  void (*rms_norm)(const RmsNormParams&, Stream&);
  void (*rope_table)(const RopeTableParams&, Stream&);
  void (*rope_append)(const RopeAppendParams&, Stream&);
  void (*silu_mul)(const SiluMulParams&, Stream&);
  void (*linear)(const LinearParams&, Stream&);
  // Independent products at once (heads, experts): many small ones cost one hand-over. They share
  // x_dtype.
  void (*linear_group)(const LinearParams* items, int32_t count, Stream&);
  void (*expert_linear)(const ExpertLinearParams&, Stream&);
  void (*soft_cap)(const SoftCapParams&, Stream&);
  void (*rope)(const RopeParams&, Stream&);
  void (*latent_append)(const LatentAppendParams&, Stream&);
  void (*latent_gather)(const LatentGatherParams&, Stream&);
  void (*cast)(const CastParams&, Stream&);
  void (*moe_route)(const MoeRouteParams&, Stream&);
  void (*moe_sort)(const MoeSortParams&, Stream&);
  void (*copy_rows)(const CopyRowsParams&, Stream&);
  void (*moe_combine)(const MoeCombineParams&, Stream&);
  void (*bulk_read)(const BulkReadParams&, Stream&);
  void (*merge_state)(const MergeStateParams&, Stream&);
  void (*kv_copy)(const KvCopyParams&, Stream&);
};

// The table of a device; valid for the process's life. Filled in ops/cpu_table.cc and
// ops/cuda_table.cc. REQUIRES: this build has the device's kind.
const OpTable& op_table(const device::DeviceInfo& info);
const OpTable& cpu_ops(device::CpuIsa isa);

}  // namespace attune::ops
