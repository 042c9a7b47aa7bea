#include "attention/backends/reference/reference_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "base/check.h"
#include "device/cuda/launch.cuh"

namespace attune::attention::reference {
namespace {

using tensor::DType;

constexpr int32_t kWarps = 16, kGroup = 8;  // keys that a warp takes at once, for the loads' sake
constexpr int32_t kMaxDim = 1024;
constexpr uint32_t kPlainShared = 48 << 10;  // more has to be asked for

struct Args {
  Batch::Arrays at;
  int32_t num_seqs;
  bool rows, causal;
  LayerParams layer;
  kv::PagedKvView kv;
  Io io;
};

// Where a token's query stands and what its sequence has.
struct Query {
  int32_t kv_len = 0;
  int64_t prefix = 0, position = 0;
  uint64_t seen = 0;               // of the own tokens in a tree
  const uint64_t* tree = nullptr;  // words of the sequence's tokens; null: causal
  const int32_t* slots = nullptr;
  int64_t first_row = 0;
};

// The sequence s with q_indptr[s] <= token < q_indptr[s + 1].
__device__ int32_t sequence_of(const Args& a, int32_t token) {
  int32_t low = 0, high = a.num_seqs;  // the answer is in [low, high)
  while (high - low > 1) {
    const int32_t mid = low + (high - low) / 2;
    (a.at.q_indptr[mid] <= token ? low : high) = mid;
  }
  return low;
}

__device__ Query query_of(const Args& a, int32_t token) {
  Query q;
  if (token >= a.at.q_indptr[a.num_seqs]) return q;
  const int32_t s = sequence_of(a, token), first = a.at.q_indptr[s];
  q.kv_len = a.at.kv_len[s];
  q.prefix = int64_t{q.kv_len} - (a.at.q_indptr[s + 1] - first);
  q.position = q.prefix + token - first;
  if (a.at.tree_mask) {
    q.tree = a.at.tree_mask + first;
    q.seen = a.at.tree_mask[token];
    q.position = q.prefix + __popcll(q.seen) - 1;
  }
  if (a.rows) {
    q.first_row = a.at.kv_start[s];
  } else {
    q.slots = a.at.page_slots + a.at.page_indptr[s];
  }
  return q;
}

__device__ bool visible(const Args& a, const Query& q, int32_t key) {
  if (key >= q.kv_len) return false;
  const bool in_tree = q.tree && key >= q.prefix;
  const int64_t key_position =
      in_tree ? q.prefix + __popcll(q.tree[key - q.prefix]) - 1 : int64_t{key};
  if (a.layer.window > 0 && q.position - key_position >= a.layer.window) return false;
  if (!a.causal) return true;
  return in_tree ? q.seen >> (key - q.prefix) & 1 : key_position <= q.position;
}

// Keys outside [first_key, end_key) are hidden. A tree's nodes may stand in any order.
__device__ int32_t first_key(const Args& a, const Query& q) {
  if (a.layer.window <= 0) return 0;
  const int64_t first = q.position - a.layer.window + 1, limit = q.tree ? q.prefix : q.kv_len;
  return static_cast<int32_t>(max(int64_t{0}, min(first, limit)));
}
__device__ int32_t end_key(const Args& a, const Query& q) {
  if (!a.causal || q.tree) return q.kv_len;
  return static_cast<int32_t>(max(int64_t{0}, q.position + 1));
}

// K or V, by its offset and strides, of one key.
template <typename T>
__device__ const T* row_of(const Args& a, const Query& q, int32_t key, int64_t head_bytes,
                           int64_t token_stride) {
  const char* base = static_cast<const char*>(a.kv.base) + head_bytes;
  if (a.rows) return reinterpret_cast<const T*>(base + (q.first_row + key) * token_stride);
  const int64_t slot = q.slots[key / a.kv.page_size];
  return reinterpret_cast<const T*>(base + slot * a.kv.page_stride +
                                    key % a.kv.page_size * token_stride);
}

__device__ float load(const void* base, DType dtype, int64_t i) {
  if (dtype == DType::kBF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[i]);
  if (dtype == DType::kF16) return __half2float(static_cast<const __half*>(base)[i]);
  return static_cast<const float*>(base)[i];
}

__device__ void store(void* base, DType dtype, int64_t i, float x) {
  if (dtype == DType::kBF16) {
    static_cast<__nv_bfloat16*>(base)[i] = __float2bfloat16(x);
  } else if (dtype == DType::kF16) {
    static_cast<__half*>(base)[i] = __float2half(x);
  } else {
    static_cast<float*>(base)[i] = x;
  }
}

// exp(x - top), where top may be -inf because there was nothing.
__device__ float weight_of(float x, float top) {
  return x == -INFINITY ? 0.0f : expf(x - top);
}

// Online softmax (arXiv:1805.02867) of one warp: the highest score, the sum of exp(score - top),
// and the sum of values so weighted, in shared memory.
struct Softmax {
  float top = -INFINITY, sum = 0;
  float* out;  // [v_dim]
};

// Keys [key, key + kGroup), those that the query sees.
template <typename T>
__device__ void take_group(const Args& a, const Query& query, const float* q, int32_t kv_head,
                           int32_t key, Softmax& state) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int64_t v_offset = a.kv.v_offset + kv_head * a.kv.v_head_stride;
  bool sees[kGroup], any = false;
  const T *k[kGroup], *v[kGroup];
  for (int32_t j = 0; j < kGroup; ++j) {
    sees[j] = visible(a, query, key + j);
    any |= sees[j];
    if (!sees[j]) continue;
    k[j] = row_of<T>(a, query, key + j, kv_head * a.kv.k_head_stride, a.kv.k_token_stride);
    v[j] = row_of<T>(a, query, key + j, v_offset, a.kv.v_token_stride);
  }
  if (!any) return;
  float score[kGroup] = {};
  for (int32_t d = lane; d < a.kv.k_dim; d += 32)
    for (int32_t j = 0; j < kGroup; ++j)
      if (sees[j]) score[j] += q[d] * static_cast<float>(k[j][d]);
  float top = state.top;
  for (int32_t j = 0; j < kGroup; ++j) {
    for (int32_t step = 16; step > 0; step /= 2)
      score[j] += __shfl_xor_sync(0xffffffff, score[j], step);
    score[j] *= a.layer.scale;
    if (a.layer.soft_cap > 0) score[j] = a.layer.soft_cap * tanhf(score[j] / a.layer.soft_cap);
    if (sees[j]) top = fmaxf(top, score[j]);
  }
  const float old = weight_of(state.top, top);
  float sum = 0;
  for (int32_t j = 0; j < kGroup; ++j) {
    score[j] = sees[j] ? expf(score[j] - top) : 0.0f;
    sum += score[j];
  }
  for (int32_t d = lane; d < a.kv.v_dim; d += 32) {
    float more = 0;
    for (int32_t j = 0; j < kGroup; ++j)
      if (sees[j]) more += score[j] * static_cast<float>(v[j][d]);
    state.out[d] = state.out[d] * old + more;
  }
  state.sum = state.sum * old + sum;
  state.top = top;
}

// The warps' parts, in their order, and the sink; all threads.
__device__ void finish(const Args& a, int32_t token, int32_t head, const Softmax& mine,
                       const float* parts) {
  __shared__ float tops[kWarps], sums[kWarps];
  if (threadIdx.x % 32 == 0) {
    tops[threadIdx.x / 32] = mine.top;
    sums[threadIdx.x / 32] = mine.sum;
  }
  __syncthreads();
  const float sink = a.layer.sinks ? a.layer.sinks[head] : -INFINITY;
  float top = sink;
  for (int32_t w = 0; w < kWarps; ++w) top = fmaxf(top, tops[w]);
  float total = weight_of(sink, top), weights[kWarps];
  for (int32_t w = 0; w < kWarps; ++w) {
    weights[w] = weight_of(tops[w], top);
    total += sums[w] * weights[w];
  }
  const int64_t to = token * a.io.out_stride + int64_t{head} * a.kv.v_dim;
  for (auto d = static_cast<int32_t>(threadIdx.x); d < a.kv.v_dim; d += kWarps * 32) {
    float x = 0;
    for (int32_t w = 0; w < kWarps; ++w) x += parts[w * a.kv.v_dim + d] * weights[w];
    store(a.io.out, a.io.out_dtype, to + d, total == 0 ? 0.0f : x / total);
  }
  if (a.io.lse && threadIdx.x == 0)
    a.io.lse[int64_t{token} * a.layer.q_heads + head] = total == 0 ? -INFINITY : top + logf(total);
}

// A CTA per token and head. Groups of keys, counted from the sequence's first, go to the warps in
// turn: which warp sums which keys in which order depends on the row alone.
template <typename T>
__global__ void __launch_bounds__(kWarps * 32) attend(Args a) {
  extern __shared__ float shared[];  // the query, then each warp's sums of values
  device::pdl_wait();
  device::pdl_trigger();
  const auto token = static_cast<int32_t>(blockIdx.x), head = static_cast<int32_t>(blockIdx.y);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  float* parts = shared + a.kv.k_dim;
  const int64_t from = token * a.io.q_stride + int64_t{head} * a.kv.k_dim;
  for (auto d = static_cast<int32_t>(threadIdx.x); d < a.kv.k_dim; d += kWarps * 32)
    shared[d] = load(a.io.q, a.io.q_dtype, from + d);
  for (auto d = static_cast<int32_t>(threadIdx.x); d < kWarps * a.kv.v_dim; d += kWarps * 32)
    parts[d] = 0;
  __syncthreads();
  const Query query = query_of(a, token);
  const int32_t end = end_key(a, query), first = first_key(a, query) / (kWarps * kGroup) * kWarps;
  Softmax state{.out = parts + warp * a.kv.v_dim};
  for (int32_t group = first + warp; group * kGroup < end; group += kWarps)
    take_group<T>(a, query, shared, head / (a.layer.q_heads / a.layer.kv_heads), group * kGroup,
                  state);
  finish(a, token, head, state, parts);
}

auto kernel_of(DType kv) -> void (*)(Args) {
  switch (kv) {
    case DType::kF32:
      return attend<float>;
    case DType::kBF16:
      return attend<__nv_bfloat16>;
    case DType::kF16:
      return attend<__half>;
    case DType::kF8E4M3:
      return attend<__nv_fp8_e4m3>;
    case DType::kF8E5M2:
      return attend<__nv_fp8_e5m2>;
    default:
      ATTUNE_CHECK(!"a KV dtype that the capabilities name");
  }
}

}  // namespace

void run_on_gpu(const Batch& batch, const LayerParams& layer, const kv::PagedKvView& kv,
                const Io& io, device::Stream& stream) {
  if (batch.num_tokens == 0) return;
  ATTUNE_CHECK(kv.k_dim <= kMaxDim && kv.v_dim <= kMaxDim);
  Args args{batch.on_device, batch.num_seqs, reads_rows(batch.path), batch.causal, layer, kv, io};
  if (!batch.tree_mask) args.at.tree_mask = nullptr;
  const auto kernel = kernel_of(kv.dtype);
  const uint32_t shared = static_cast<uint32_t>(kv.k_dim + kWarps * kv.v_dim) * 4;
  if (shared > kPlainShared)  // a failure is the launch's
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared));
  device::launch_kernel(
      stream, "reference_attention",
      {.grid = {static_cast<uint32_t>(batch.num_tokens), static_cast<uint32_t>(layer.q_heads)},
       .block = kWarps * 32,
       .shared_bytes = shared},
      {{"tokens", batch.num_tokens},
       {"seqs", batch.num_seqs},
       {"q_heads", layer.q_heads},
       {"kv_heads", layer.kv_heads},
       {"k_dim", kv.k_dim},
       {"v_dim", kv.v_dim}},
      kernel, args);
}

}  // namespace attune::attention::reference
