// Rotary embedding of q and k and the append of k and v to their pages, in one launch.
#include "ops/cuda_kernels.h"
#include "ops/kernel_util.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr int kRun = 8;          // elements of one load
constexpr int kUnit = 2 * kRun;  // elements of a thread: both sides of eight pairs, if rotated

enum class Part : uint8_t { kQ, kK, kV };

struct Head {
  int64_t token;
  int32_t index;  // among all heads of the token's row
  Part part;
};

__device__ __forceinline__ Head head_at(const RopeAppendParams& p, int32_t index) {
  return {static_cast<int64_t>(blockIdx.x), index,
          index < p.q_heads                ? Part::kQ
          : index < p.q_heads + p.kv_heads ? Part::kK
                                           : Part::kV};
}

// Where a key's or value's head goes; null: nowhere.
struct Place {
  char* at = nullptr;
  bool begins_page = false;
};

__device__ __forceinline__ Place place_of(const RopeAppendParams& p, const Head& head) {
  const int64_t slot = p.slot_mapping[head.token];
  if (slot < 0) return {};
  int64_t page, offset;
  if (slot >> 31 == 0) {  // a 64-bit division takes longer than all the rest
    page = static_cast<uint32_t>(slot) / static_cast<uint32_t>(p.page_size);
    offset = static_cast<uint32_t>(slot) % static_cast<uint32_t>(p.page_size);
  } else {
    page = slot / p.page_size;
    offset = slot % p.page_size;
  }
  const int32_t kv_head = head.index - p.q_heads - (head.part == Part::kV ? p.kv_heads : 0);
  return {static_cast<char*>(p.kv_base) + page * p.page_stride + offset * p.token_stride +
              kv_head * p.head_stride + (head.part == Part::kV ? p.v_offset : 0),
          offset == 0};
}

// RopeAppendParams::clear_rest: zero(address) for this head of every slot behind the first of a
// page that no token of the call fills.
template <typename Zero>
__device__ __forceinline__ void clear_rest(const RopeAppendParams& p, int64_t token,
                                           const Place& place, Zero&& zero) {
  if (!p.clear_rest || !place.begins_page) return;
  const int64_t slot = p.slot_mapping[token];
  for (int32_t i = 1; i < p.page_size; ++i)
    if (token + i >= p.tokens || p.slot_mapping[token + i] != slot + i)
      zero(place.at + i * p.token_stride);
}

__device__ __forceinline__ float inverse_rms(float square, const RopeAppendParams& p) {
  return 1.0f / sqrtf(square / static_cast<float>(p.head_dim) + p.norm_eps);
}

// Grid: tokens, pieces of a token's heads. `lanes` threads (a power of two) per head, of which
// head_dim / 16 have work. Thread u holds elements [a, a + 8) and [b, b + 8), chosen so that pairs
// meet in one thread. `weight`s are on their way before the kernel ahead has ended.
template <typename In, typename Kv>
__global__ void __launch_bounds__(kThreads) append_units(RopeAppendParams p, int32_t lanes) {
  const auto thread = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  const Head head = head_at(p, thread / lanes);
  const int32_t u = thread % lanes;
  const int32_t half = p.rot_dim / 2, rotated = half / kRun;
  const bool halves = p.style == RopeStyle::kHalf && u < rotated;
  const int32_t a = halves ? u * kRun : u * kUnit, b = halves ? half + a : a + kRun;
  const bool active = head.index < p.q_heads + 2 * p.kv_heads && u < p.head_dim / kUnit;
  const float* weight = head.part == Part::kQ   ? p.q_norm
                        : head.part == Part::kK ? p.k_norm
                                                : nullptr;
  float x[2][kRun], w[2][kRun];
  if (active && weight) {
    load(weight + a, w[0]);
    load(weight + b, w[1]);
  }
  pdl_trigger();
  pdl_wait();
  Place place;
  float square = 0;
  if (active) {
    const In* from =
        static_cast<const In*>(p.qkv) + head.token * p.ldqkv + int64_t{head.index} * p.head_dim;
    load(from + a, x[0]);
    load(from + b, x[1]);
    if (head.part != Part::kQ) place = place_of(p, head);
    for (int i = 0; i < kRun; ++i) square += x[0][i] * x[0][i] + x[1][i] * x[1][i];
  }
  if (p.q_norm || p.k_norm) {  // of all threads alike
    for (int32_t offset = lanes / 2; offset > 0; offset /= 2)
      square += __shfl_xor_sync(~0u, square, offset);
  }
  if (!active) return;
  if (weight) {
    const float inv = inverse_rms(square, p);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      x[0][i] = x[0][i] * inv * w[0][i];
      x[1][i] = x[1][i] * inv * w[1][i];
    }
  }
  if (head.part != Part::kV && u < rotated) {
    float cos[kRun], sin[kRun];
    load(p.cos + head.token * half + u * kRun, cos);
    load(p.sin + head.token * half + u * kRun, sin);
    if (halves) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float first = x[0][i], second = x[1][i];
        x[0][i] = first * cos[i] - second * sin[i];
        x[1][i] = second * cos[i] + first * sin[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        float* pair = &x[i / 4][2 * (i % 4)];
        const float first = pair[0], second = pair[1];
        pair[0] = first * cos[i] - second * sin[i];
        pair[1] = second * cos[i] + first * sin[i];
      }
    }
  }
  if (head.part == Part::kQ) {
    In* to =
        static_cast<In*>(p.q_out) + (head.token * p.q_heads + head.index) * int64_t{p.head_dim};
    store(x[0], to + a);
    store(x[1], to + b);
  } else if (place.at) {
    const float scale = head.part == Part::kK ? p.k_scale : p.v_scale;
    if (scale != 1) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) x[i / kRun][i % kRun] /= scale;
    }
    store(x[0], reinterpret_cast<Kv*>(place.at) + a);
    store(x[1], reinterpret_cast<Kv*>(place.at) + b);
    clear_rest(p, head.token, place, [&](char* at) {
      const float zeros[kRun] = {};
      store(zeros, reinterpret_cast<Kv*>(at) + a);
      store(zeros, reinterpret_cast<Kv*>(at) + b);
    });
  }
}

// Any head size and alignment: a warp per head.
template <typename In, typename Kv>
__global__ void __launch_bounds__(kThreads) append_elements(RopeAppendParams p) {
  pdl_trigger();
  pdl_wait();
  const auto warp = static_cast<int32_t>((blockIdx.y * kThreads + threadIdx.x) / kWarp);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const Head head = head_at(p, warp);
  if (head.index >= p.q_heads + 2 * p.kv_heads) return;
  const In* x =
      static_cast<const In*>(p.qkv) + head.token * p.ldqkv + int64_t{head.index} * p.head_dim;
  const float* weight = head.part == Part::kQ   ? p.q_norm
                        : head.part == Part::kK ? p.k_norm
                                                : nullptr;
  float inv = 1;
  if (weight) {
    float square = 0;
    for (int32_t i = lane; i < p.head_dim; i += kWarp) square += to_float(x[i]) * to_float(x[i]);
    inv = inverse_rms(warp_sum(square), p);
  }
  const auto value = [&](int32_t i) {
    return weight ? to_float(x[i]) * inv * weight[i] : to_float(x[i]);
  };
  const Place place = head.part == Part::kQ ? Place() : place_of(p, head);
  const float scale = head.part == Part::kK ? p.k_scale : p.v_scale;
  const auto put = [&](int32_t i, float v) {
    if (head.part == Part::kQ) {
      static_cast<In*>(p.q_out)[(head.token * p.q_heads + head.index) * p.head_dim + i] =
          from_float<In>(v);
    } else if (place.at) {
      reinterpret_cast<Kv*>(place.at)[i] = from_float<Kv>(scale == 1 ? v : v / scale);
    }
  };
  const int32_t half = head.part == Part::kV ? 0 : p.rot_dim / 2;
  const bool halves = p.style == RopeStyle::kHalf;
  for (int32_t i = lane; i < half; i += kWarp) {
    const float cos = p.cos[head.token * half + i], sin = p.sin[head.token * half + i];
    const int32_t first = halves ? i : 2 * i, second = halves ? i + half : 2 * i + 1;
    const float a = value(first), b = value(second);
    put(first, a * cos - b * sin);
    put(second, b * cos + a * sin);
  }
  for (int32_t i = 2 * half + lane; i < p.head_dim; i += kWarp) put(i, value(i));
  clear_rest(p, head.token, place, [&](char* at) {
    for (int32_t i = lane; i < p.head_dim; i += kWarp)
      reinterpret_cast<Kv*>(at)[i] = from_float<Kv>(0);
  });
}

bool fits_units(const RopeAppendParams& p, int64_t in_bytes, int64_t kv_bytes) {
  return p.head_dim % kUnit == 0 && p.head_dim <= kUnit * kWarp && p.rot_dim % kUnit == 0 &&
         all_multiples(16, {address(p.qkv), p.ldqkv * in_bytes, address(p.q_out), address(p.cos),
                            address(p.sin), address(p.q_norm), address(p.k_norm)}) &&
         all_multiples(kv_bytes == 1 ? kRun : 16, {address(p.kv_base), p.page_stride, p.head_stride,
                                                   p.token_stride, p.v_offset});
}

template <typename In, typename Kv>
void launch(const RopeAppendParams& p, Stream& stream) {
  const int64_t heads = p.q_heads + 2 * p.kv_heads;
  const auto shape = [&](int64_t lanes) -> LaunchShape {
    return {.grid = dim3(static_cast<uint32_t>(p.tokens),
                         static_cast<uint32_t>(ceil_div(heads * lanes, kThreads))),
            .block = dim3(kThreads)};
  };
  const std::initializer_list<device::LaunchArg> told = {{"tokens", p.tokens},
                                                         {"q_heads", p.q_heads},
                                                         {"kv_heads", p.kv_heads},
                                                         {"head_dim", p.head_dim}};
  if (fits_units(p, sizeof(In), sizeof(Kv))) {
    int32_t lanes = 1;
    while (lanes * kUnit < p.head_dim) lanes *= 2;
    launch_kernel(stream, "rope_append", shape(lanes), told, append_units<In, Kv>, p, lanes);
  } else {
    launch_kernel(stream, "rope_append", shape(kWarp), told, append_elements<In, Kv>, p);
  }
}

}  // namespace

void rope_append(const RopeAppendParams& p, Stream& stream) {
  if (p.tokens == 0) return;
  with_activation(p.dtype, [&](auto in) {
    with_element(p.kv_dtype, [&](auto kv) { launch<decltype(in), decltype(kv)>(p, stream); });
  });
}

}  // namespace attune::ops::cuda
