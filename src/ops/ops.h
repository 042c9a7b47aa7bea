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

struct PackedWeight;  // ops/gemm/gemm.h

// x[t, :] = table[ids[t], :], in float32.
struct EmbedParams {
  const int32_t* ids;  // [tokens]
  int32_t tokens;
  const void* table;  // [vocab, hidden], row-major, any dtype of tensor/dtype.h
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
  const float* qkv;  // [tokens, (q_heads + 2*kv_heads) * head_dim], row stride ldqkv
  int64_t ldqkv;
  int32_t tokens, q_heads, kv_heads, head_dim, rot_dim;
  RopeStyle style;
  const float* cos;  // [tokens, rot_dim/2]
  const float* sin;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;  // [head_dim] or null
  float norm_eps;
  float* q_out;  // [tokens, q_heads, head_dim]
  // Where token t's k and v go: slot_mapping[t] = device_slot * page_size + offset in page; -1:
  // nowhere.
  const int64_t* slot_mapping;  // [tokens]
  void* kv_base;                // one layer's pages: kv/layout/layout.h
  DType kv_dtype;
  int64_t page_stride;   // bytes from one page to the next
  int64_t head_stride;   // bytes, inside K or V of a page
  int64_t token_stride;  // bytes, inside K or V of a page
  int64_t v_offset;      // bytes from a page's K to its V
  int32_t page_size;
};

// out = silu(gate) * up, from the fused product [rows, 2n]: gate in the first n columns.
struct SiluMulParams {
  const float* gate_up;  // [rows, 2n], row stride ldx
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
  float* y;                    // [m, n], row stride ldy
  int64_t ldy;
  bool accumulate;     // add to y (the residual) instead of overwriting it
  bool deterministic;  // a row's result must not depend on m, to the bit
};

// rows of x picked by index: out[i] = x[rows[i]] (the last tokens of each sequence before the
// head).
struct GatherRowsParams {
  const float* x;
  int64_t ldx;
  const int32_t* rows;  // [count]
  int32_t count, n;
  float* out;  // [count, n]
};

struct OpTable {
  void (*embed)(const EmbedParams&, Stream&);
  void (*rms_norm)(const RmsNormParams&, Stream&);
  void (*rope_table)(const RopeTableParams&, Stream&);
  void (*rope_append)(const RopeAppendParams&, Stream&);
  void (*silu_mul)(const SiluMulParams&, Stream&);
  void (*linear)(const LinearParams&, Stream&);
  void (*gather_rows)(const GatherRowsParams&, Stream&);
};

// The table of a CPU level; valid for the process's life. Filled in ops/cpu_table.cc.
const OpTable& cpu_ops(device::CpuIsa isa);

}  // namespace attune::ops
