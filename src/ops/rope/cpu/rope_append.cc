#include <cstring>

#include "base/check.h"
#include "ops/convert.h"
#include "ops/cpu_kernels.h"
#include "ops/rope/cpu/rotate.h"

namespace attune::ops::cpu {
namespace {

constexpr int kMaxHeadDim = 1024;

void rms_norm_head(const float* x, const float* weight, float eps, int n, float* y) {
  const float inv = inverse_rms(x, n, eps);
  for (int i = 0; i < n; ++i) y[i] = x[i] * inv * weight[i];
}

// Rotates x[0, rot_dim) into y; the rest is copied.
void rotate(const float* __restrict x, const float* __restrict cos, const float* __restrict sin,
            const RopeAppendParams& p, float* __restrict y) {
  rotate_pairs(x, cos, sin, p.rot_dim / 2, p.style, y);
  if (p.rot_dim < p.head_dim)
    std::memcpy(y + p.rot_dim, x + p.rot_dim, size_t(p.head_dim - p.rot_dim) * 4);
}

// y = x / scale; in place where y is x.
void divide(const float* x, float scale, int n, float* y) {
  for (int i = 0; i < n; ++i) y[i] = x[i] / scale;
}

// RopeAppendParams::clear_rest, of a token at `k` that begins a page.
void clear_rest(const RopeAppendParams& p, int64_t t, char* k) {
  const auto bytes = static_cast<size_t>(tensor::dtype_bytes(p.kv_dtype, p.head_dim));
  for (int32_t i = 1; i < p.page_size; ++i) {
    if (t + i < p.tokens && p.slot_mapping[t + i] == p.slot_mapping[t] + i) continue;
    for (int h = 0; h < p.kv_heads; ++h)
      for (int64_t part : {int64_t{0}, p.v_offset})
        std::memset(k + part + i * p.token_stride + h * p.head_stride, 0, bytes);
  }
}

void append_token(const RopeAppendParams& p, int64_t t) {
  const int d = p.head_dim, half = p.rot_dim / 2;
  const float* cos = p.cos + t * half;
  const float* sin = p.sin + t * half;
  const float* x = static_cast<const float*>(p.qkv) + t * p.ldqkv;
  float* q = static_cast<float*>(p.q_out) + t * p.q_heads * d;
  float normed[kMaxHeadDim];
  const auto norm_and_rotate = [&](const float* weight, float* out) {
    if (weight) rms_norm_head(x, weight, p.norm_eps, d, normed);
    rotate(weight ? normed : x, cos, sin, p, out);
  };
  for (int h = 0; h < p.q_heads; ++h, x += d, q += d) norm_and_rotate(p.q_norm, q);
  if (p.slot_mapping[t] < 0) return;
  const int64_t slot = p.slot_mapping[t] / p.page_size, offset = p.slot_mapping[t] % p.page_size;
  char* k_to = static_cast<char*>(p.kv_base) + slot * p.page_stride + offset * p.token_stride;
  char* v_to = k_to + p.v_offset;
  float k[kMaxHeadDim], scaled[kMaxHeadDim];
  for (int h = 0; h < p.kv_heads; ++h, x += d) {
    norm_and_rotate(p.k_norm, k);
    const float* v = x + int64_t{p.kv_heads} * d;
    if (p.k_scale != 1) divide(k, p.k_scale, d, k);
    if (p.v_scale != 1) {
      divide(v, p.v_scale, d, scaled);
      v = scaled;
    }
    convert_row(k, d, p.kv_dtype, k_to + h * p.head_stride);
    convert_row(v, d, p.kv_dtype, v_to + h * p.head_stride);
  }
  if (p.clear_rest && offset == 0) clear_rest(p, t, k_to);
}

}  // namespace

void rope_append(const RopeAppendParams& p, Stream& stream) {
  ATTUNE_CHECK(p.head_dim <= kMaxHeadDim);
  const int64_t row_bytes = int64_t{p.q_heads + 2 * p.kv_heads} * p.head_dim * 8;
  for_rows(stream, p.tokens, row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) append_token(p, t);
  });
}

}  // namespace attune::ops::cpu
