// Latent attention's cached rows: into the pages and out of them.
#include <cstring>

#include "base/check.h"
#include "ops/convert.h"
#include "ops/cpu_kernels.h"
#include "ops/rope/cpu/rotate.h"

namespace attune::ops::cpu {
namespace {

// A row is made in pieces of this many floats on the stack.
constexpr int32_t kPiece = 512;
constexpr int32_t kMaxRotDim = 1024;

char* row_of(void* base, int64_t position, int32_t page_size, int64_t page_stride,
             int64_t token_stride) {
  return static_cast<char*>(base) + position / page_size * page_stride +
         position % page_size * token_stride;
}

void append_token(const LatentAppendParams& p, int64_t t) {
  if (p.slot_mapping[t] < 0) return;
  const int64_t elem = tensor::dtype_bytes(p.kv_dtype, 1);
  const float* x = p.kv + t * p.ldkv;
  char* to = row_of(p.kv_base, p.slot_mapping[t], p.page_size, p.page_stride, p.token_stride);
  const float inv = inverse_rms(x, p.latent_dim, p.norm_eps);
  for (int32_t at = 0; at < p.latent_dim; at += kPiece) {
    const int32_t n = p.latent_dim - at < kPiece ? p.latent_dim - at : kPiece;
    float normed[kPiece];
    for (int32_t i = 0; i < n; ++i) normed[i] = x[at + i] * inv * p.norm[at + i] / p.kv_scale;
    convert_row(normed, n, p.kv_dtype, to + at * elem);
  }
  const int32_t half = p.rot_dim / 2;
  float rotated[kMaxRotDim];
  rotate_pairs(x + p.latent_dim, p.cos + t * half, p.sin + t * half, half, p.style, rotated);
  for (int32_t i = 0; i < p.rot_dim; ++i) rotated[i] /= p.kv_scale;
  convert_row(rotated, p.rot_dim, p.kv_dtype, to + p.latent_dim * elem);
}

void gather_row(const LatentGatherParams& p, int64_t r) {
  const int64_t elem = tensor::dtype_bytes(p.kv_dtype, 1);
  const int64_t out_bytes = tensor::dtype_bytes(p.latent_dtype, p.latent_dim);
  char* latent = static_cast<char*>(p.latents) + r * out_bytes;
  float rope[kMaxRotDim] = {};
  if (p.positions[r] < 0) {
    std::memset(latent, 0, static_cast<size_t>(out_bytes));
  } else {
    const char* from = row_of(const_cast<void*>(p.kv_base), p.positions[r], p.page_size,
                              p.page_stride, p.token_stride);
    if (p.latent_dtype == p.kv_dtype && p.kv_scale == 1) {
      std::memcpy(latent, from, static_cast<size_t>(out_bytes));
    } else {
      for (int32_t at = 0; at < p.latent_dim; at += kPiece) {
        const int32_t n = p.latent_dim - at < kPiece ? p.latent_dim - at : kPiece;
        float wide[kPiece];
        widen_row(from + at * elem, p.kv_dtype, n, wide);
        for (int32_t i = 0; i < n; ++i) wide[i] *= p.kv_scale;
        convert_row(wide, n, p.latent_dtype, latent + tensor::dtype_bytes(p.latent_dtype, at));
      }
    }
    widen_row(from + p.latent_dim * elem, p.kv_dtype, p.rot_dim, rope);
    for (int32_t i = 0; i < p.rot_dim; ++i) rope[i] *= p.kv_scale;
  }
  for (int32_t h = 0; h < p.heads; ++h)
    convert_row(
        rope, p.rot_dim, p.rope_dtype,
        static_cast<char*>(p.rope) +
            tensor::dtype_bytes(p.rope_dtype, r * p.rope_row_stride + h * p.rope_head_stride));
}

}  // namespace

void latent_append(const LatentAppendParams& p, Stream& stream) {
  ATTUNE_CHECK(p.rot_dim <= kMaxRotDim);
  for_rows(stream, p.tokens, int64_t{p.latent_dim + p.rot_dim} * 8,
           [&](int64_t begin, int64_t end) {
             for (int64_t t = begin; t < end; ++t) append_token(p, t);
           });
}

void latent_gather(const LatentGatherParams& p, Stream& stream) {
  ATTUNE_CHECK(p.rot_dim <= kMaxRotDim);
  const int64_t row_bytes = int64_t{p.latent_dim} * 8 + int64_t{p.heads} * p.rot_dim * 4;
  for_rows(stream, p.rows, row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) gather_row(p, r);
  });
}

void cast(const CastParams& p, Stream& stream) {
  const int64_t head_bytes = tensor::dtype_bytes(p.out_dtype, p.n);
  for_rows(stream, p.rows, int64_t{p.heads} * p.n * 6, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int32_t h = 0; h < p.heads; ++h)
        convert_row(p.x + r * p.ldx + h * p.head_stride, p.n, p.out_dtype,
                    static_cast<char*>(p.out) + (r * p.heads + h) * head_bytes);
  });
}

}  // namespace attune::ops::cpu
