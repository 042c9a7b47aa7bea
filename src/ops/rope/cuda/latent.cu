// Latent attention's cached rows: into the pages and out of them.
#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 128;

__device__ __forceinline__ int64_t row_offset(int64_t position, int32_t page_size,
                                              int64_t page_stride, int64_t token_stride) {
  return position / page_size * page_stride + position % page_size * token_stride;
}

// A block per token.
template <typename Kv>
__global__ void __launch_bounds__(kThreads) latent_append_kernel(LatentAppendParams p) {
  __shared__ WarpSums<kThreads / kWarp> sums;
  pdl_trigger();
  pdl_wait();
  const int64_t token = blockIdx.x;
  const int64_t slot = p.slot_mapping[token];
  if (slot < 0) return;  // of all threads alike
  const float* x = p.kv + token * p.ldkv;
  float square = 0;
  for (int32_t i = threadIdx.x; i < p.latent_dim; i += kThreads) square += x[i] * x[i];
  const float inv = rsqrtf(block_sum(square, sums) / static_cast<float>(p.latent_dim) + p.norm_eps);
  Kv* to = reinterpret_cast<Kv*>(static_cast<char*>(p.kv_base) +
                                 row_offset(slot, p.page_size, p.page_stride, p.token_stride));
  for (int32_t i = threadIdx.x; i < p.latent_dim; i += kThreads)
    to[i] = from_float<Kv>(x[i] * inv * p.norm[i] / p.kv_scale);
  x += p.latent_dim;
  to += p.latent_dim;
  const int32_t half = p.rot_dim / 2;
  const bool halves = p.style == RopeStyle::kHalf;
  for (int32_t i = threadIdx.x; i < half; i += kThreads) {
    const float cos = p.cos[token * half + i], sin = p.sin[token * half + i];
    const int32_t first = halves ? i : 2 * i, second = halves ? i + half : 2 * i + 1;
    const float a = x[first], b = x[second];
    to[first] = from_float<Kv>((a * cos - b * sin) / p.kv_scale);
    to[second] = from_float<Kv>((b * cos + a * sin) / p.kv_scale);
  }
}

// A block per row.
template <typename Kv, typename Latent, typename Rope>
__global__ void __launch_bounds__(kThreads) latent_gather_kernel(LatentGatherParams p) {
  pdl_trigger();
  pdl_wait();
  const int64_t row = blockIdx.x;
  const int64_t position = p.positions[row];
  const Kv* from = reinterpret_cast<const Kv*>(
      static_cast<const char*>(p.kv_base) +
      (position < 0 ? 0 : row_offset(position, p.page_size, p.page_stride, p.token_stride)));
  const auto value = [&](int32_t i) {
    return position < 0 ? 0.0f : to_float(from[i]) * p.kv_scale;
  };
  Latent* latents = static_cast<Latent*>(p.latents) + row * p.latent_dim;
  for (int32_t i = threadIdx.x; i < p.latent_dim; i += kThreads)
    latents[i] = from_float<Latent>(value(i));
  // Every head gets the rotated key: threads go along a head, then on to the next.
  Rope* rope = static_cast<Rope*>(p.rope) + row * p.rope_row_stride;
  for (int32_t i = threadIdx.x; i < p.heads * p.rot_dim; i += kThreads)
    rope[i / p.rot_dim * p.rope_head_stride + i % p.rot_dim] =
        from_float<Rope>(value(p.latent_dim + i % p.rot_dim));
}

LaunchShape shape(int32_t rows) {
  return {.grid = dim3(static_cast<uint32_t>(rows)), .block = dim3(kThreads)};
}

}  // namespace

void latent_append(const LatentAppendParams& p, Stream& stream) {
  if (p.tokens == 0) return;
  with_element(p.kv_dtype, [&](auto kv) {
    launch_kernel(stream, "latent_append", shape(p.tokens),
                  {{"tokens", p.tokens}, {"latent_dim", p.latent_dim}, {"rot_dim", p.rot_dim}},
                  latent_append_kernel<decltype(kv)>, p);
  });
}

void latent_gather(const LatentGatherParams& p, Stream& stream) {
  if (p.rows == 0) return;
  with_element(p.kv_dtype, [&](auto kv) {
    const auto launch = [&](auto latent) {
      with_activation(p.rope_dtype, [&](auto rope) {
        launch_kernel(stream, "latent_gather", shape(p.rows),
                      {{"rows", p.rows}, {"latent_dim", p.latent_dim}, {"heads", p.heads}},
                      latent_gather_kernel<decltype(kv), decltype(latent), decltype(rope)>, p);
      });
    };
    if (p.latent_dtype == DType::kF16) return launch(__half{});
    with_activation(p.latent_dtype, launch);
  });
}

}  // namespace attune::ops::cuda
