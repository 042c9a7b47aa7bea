#include "ops/sample/cuda/sample_kernels.h"

#include <string>

#include "ops/sample/cuda/candidates.cuh"
#include "ops/sample/cuda/draw_math.cuh"
#include "ops/sample/cuda/peak.cuh"

namespace attune::ops::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr int32_t kMaxClusters = 64;  // of a launch; some 30 run at once
constexpr float kMaxFloat = 3.402823466e+38f;

struct Candidate {
  float value;
  int32_t id;
};

struct Shared {
  Reducer<kRowWarps>::Memory reducer;
  SelectMemory select;
  CandidateMemory candidates;
  Candidate warp_best[2][kRowWarps];
  Candidate top[SampledRow::kMaxTop];  // of the block's slice
  int32_t token;                       // block 0's: what was drawn
};

__device__ __forceinline__ float* slice_memory(float* shared, float* workspace, int64_t row,
                                               int32_t vocab) {
  if (workspace == nullptr) return shared;
  const int64_t elems = slice_elems(vocab, cluster_size());
  return workspace + (row * cluster_size() + cluster_rank()) * elems;
}

__device__ Peak load(Row& row, const float* logits, int32_t vocab, Reducer<kRowWarps>& reducer) {
  const bool aligned = vocab % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  Peak peak = no_peak();
  const int32_t first = row.first_id();
  row.load(logits, aligned, [&](float v, int32_t i) { add(peak, v, first + i); });
  return merged(peak, reducer);
}

__device__ double log_sum_exp(const Row& row, float peak, Reducer<kRowWarps>& reducer) {
  float sum = 0;
  row.for_each([&](float v, int32_t) { sum += exp_nonpositive(v - peak); });
  return peak + log(reducer.sum(sum));
}

// The slice's `top` best after each other; fewer if it has fewer. Every thread knows its next;
// a round takes the best of all.
__device__ void best_of_slice(const Row& row, int32_t top, Shared& s) {
  const auto lane = Row::lane();
  Candidate last = {INFINITY, -1}, mine = {};
  const auto find_next = [&] {
    mine = {-INFINITY, INT32_MAX};
    row.for_each([&](float v, int32_t i) {
      if (i < row.count() && before(last.value, last.id, v, i) && before(v, i, mine.value, mine.id))
        mine = {v, i};
    });
  };
  find_next();
  top = min(top, row.count());
  for (int32_t k = 0; k < top; ++k) {
    Candidate best = mine;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const Candidate other = shuffle_xor(best, offset);
      if (before(other.value, other.id, best.value, best.id)) best = other;
    }
    if (lane == 0) s.warp_best[k % 2][Row::warp()] = best;
    __syncthreads();
    best = s.warp_best[k % 2][lane % kRowWarps];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const Candidate other = shuffle_xor(best, offset);
      if (before(other.value, other.id, best.value, best.id)) best = other;
    }
    if (threadIdx.x == 0) s.top[k] = {best.value, row.first_id() + best.id};
    if (best.id == mine.id) {
      last = best;
      find_next();
    }
  }
}

// The row's `top` best into out: the first warp of block 0 merges what the blocks found.
__device__ void write_top(const Row& row, int32_t top, int32_t vocab, double lse, Shared& s,
                          SampledRow* out) {
  best_of_slice(row, top, s);
  cluster_sync();
  if (row.rank() != 0 || Row::warp() != 0) return;
  top = min(top, vocab);
  const int32_t lane = Row::lane(), elems = slice_elems(vocab, row.blocks());
  const int32_t have = min(top, max(0, min(elems, vocab - lane * elems)));
  int32_t next = 0;
  for (int32_t k = 0; k < top; ++k) {
    Candidate best = {-INFINITY, INT32_MAX};
    if (lane < row.blocks() && next < have) best = of_block(&s, lane)->top[next];
    const int32_t mine = best.id;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const Candidate other = shuffle_xor(best, offset);
      if (before(other.value, other.id, best.value, best.id)) best = other;
    }
    next += mine == best.id;
    if (lane == 0) {
      out->top_tokens[k] = best.id;
      out->top_logprobs[k] = static_cast<float>(best.value - lse);
    }
  }
  if (lane == 0) out->num_top = top;
}

// Bias, penalties, forbidden ids: see ops/sample/sample.h. True if any was there.
__device__ bool change_logits(Row& row, const Place& place, const uint32_t* counts) {
  const int32_t forbidden = place.output_tokens < place.min_new_tokens ? place.num_forbidden : 0;
  const bool penalised = place.penalised != 0;
  if (place.num_bias == 0 && !penalised && forbidden == 0) return false;
  __syncthreads();
  for (int32_t j = static_cast<int32_t>(threadIdx.x); j < place.num_bias; j += kRowThreads)
    if (row.has(place.bias_ids[j])) row.at(place.bias_ids[j] - row.first_id()) += place.bias[j];
  __syncthreads();
  if (penalised) {
    const float repetition = place.repetition, presence = place.presence,
                frequency = place.frequency;
    counts += row.first_id();
    row.transform([&](float l, int32_t i) {
      const uint32_t count = i < row.count() ? counts[i] : 0;
      if (count == 0) return l;
      if (repetition != 1.0f) l = l > 0 ? fminf(l / repetition, kMaxFloat) : l * repetition;
      const uint32_t in_output = count & ~kInPrompt;
      if (in_output > 0) l -= presence + frequency * static_cast<float>(in_output);
      return l;
    });
    __syncthreads();
  }
  for (int32_t j = static_cast<int32_t>(threadIdx.x); j < forbidden; j += kRowThreads)
    if (row.has(place.forbidden[j])) row.at(place.forbidden[j] - row.first_id()) = -INFINITY;
  __syncthreads();
  return true;
}

// Inverse of the cumulative distribution in order of ids. The values are probabilities.
__device__ void draw_by_id(Row& row, double u, Shared& s) {
  // A warp's sum, in the place where the reducer has it: by (block, warp), so by id.
  double own = 0;
  row.for_each([&](float v, int32_t) { own += v; });
  own = warp_total(own);
  if (Row::lane() == 0) s.select.warp_mass[Row::warp()] = own;
  cluster_sync();
  const WarpMasses<kMaxCluster * kRowWarps> masses(row.blocks() * kRowWarps, [&](int32_t w) {
    return of_block(&s, w / kRowWarps)->select.warp_mass[w % kRowWarps];
  });
  double left;
  const int32_t chosen = masses.find(u * masses.total(), &left), lane = Row::lane();
  if (chosen != row.rank() * kRowWarps + Row::warp()) return;
  // The first id whose sum passes what is left; where rounding leaves none, the last that has any.
  int32_t last_id = -1;
  bool done = false;
  row.for_stripes([&](const float(&v)[4], int32_t i) {
    double four = 0;
    for (float x : v) four += x;
    const double sum = warp_scan(four);
    double at = sum - four;
    int32_t id = INT32_MAX, positive = -1;
    for (int32_t k = 0; k < 4; ++k) {
      if (v[k] <= 0) continue;
      positive = row.first_id() + i + k;
      at += v[k];
      if (id == INT32_MAX && left < at) id = positive;
    }
    id = __reduce_min_sync(~0u, id);
    last_id = max(last_id, __reduce_max_sync(~0u, positive));
    left -= __shfl_sync(~0u, sum, kWarp - 1);
    if (id == INT32_MAX) return false;
    if (lane == 0) *of_block(&s.token, 0) = id;
    done = true;
    return true;
  });
  if (!done && lane == 0) *of_block(&s.token, 0) = last_id;
}

__device__ __forceinline__ double at_least(double count, uint32_t most) {
  return count < 1 ? 1 : count > most ? most : count;
}

// In order of probability: top-k, top-p of what it leaves, min-p, then the draw.
__device__ void draw_by_rank(Row& row, const Place& place, double u, bool top_k, Shared& s) {
  Selector selector(row, &s.select);
  double kept = selector.total();
  // Few are left, and one block can sort them; or else all stay where they are.
  const Target likely = top_k ? Target{Goal::kCount, 0, static_cast<uint32_t>(place.top_k), 0}
                              : Target{Goal::kReach, static_cast<double>(place.top_p) * kept, 0, 0};
  const Found bound = selector.bound(likely);
  const uint32_t candidates = bound.count_above + bound.count_equal;
  constexpr int32_t kMost = 2048;
  if (candidates <= kMost) {
    static_assert(sizeof(s.select.histogram) >= key_slot(kMost) * sizeof(uint64_t));
    auto* keys = reinterpret_cast<uint64_t*>(s.select.histogram);
    gather(row, max(bound.bits, 1u), &s.select, keys);
    if (row.rank() != 0) return;
    const int32_t token =
        Candidates<kRowThreads>(keys, static_cast<int32_t>(candidates), &s.candidates)
            .draw({place.top_k, place.top_p, place.min_p}, u, top_k, kept, true);
    if (threadIdx.x == 0) s.token = token;
    return;
  }
  uint32_t lowest = 0;  // bits of the least likely that is kept
  if (top_k) {
    const auto k = static_cast<uint32_t>(place.top_k);
    const Found f = selector.find({Goal::kCount, 0, k, 0});
    const double more = static_cast<double>(k - f.count_above);
    kept = f.mass_above + at_least(more, f.count_equal) * f.probability();
    lowest = f.bits;
  }
  if (place.top_p < 1.0f) {
    const double target = fmax(static_cast<double>(place.top_p) * kept, 1e-300);
    const Found f = selector.find({Goal::kReach, target, 0, 0});
    const double more = ceil((target - f.mass_above) / f.probability());
    kept = f.mass_above + at_least(more, f.count_equal) * f.probability();
    lowest = f.bits;
  }
  const uint32_t min_p = __float_as_uint(fmaxf(place.min_p, 0.0f));
  if (min_p > lowest) {
    const Found f = selector.find({Goal::kAtLeast, 0, 0, min_p});
    kept = f.mass_above + static_cast<double>(f.count_equal) * f.probability();
  }
  const double target = u * kept;
  const Found f = selector.find({Goal::kPass, target, 0, 0});
  const double more = floor((target - f.mass_above) / f.probability()) + 1;
  selector.locate(f, static_cast<uint32_t>(at_least(more, f.count_equal)), &s.token);
}

// The row's values become probabilities of which the peak's is 1; drawn in s.token of block 0.
__device__ void draw(Row& row, const Place& place, float peak, int32_t position, int32_t vocab,
                     Shared& s) {
  const bool top_k = cuts_top_k(place.top_k, vocab);
  const bool by_id = !top_k && place.top_p >= 1.0f;
  const float inverse = 1.0f / place.temperature, least = by_id ? place.min_p : 0.0f;
  row.transform([&](float l, int32_t) {
    const float p = exp_nonpositive((l - peak) * inverse);
    return p < least ? 0.0f : p;
  });
  const double u = uniform(place.seed, static_cast<uint64_t>(static_cast<int64_t>(position)));
  if (by_id) {
    draw_by_id(row, u, s);
  } else {
    draw_by_rank(row, place, u, top_k, s);
  }
}

__device__ void sample_row(const SampleArgs& a, int64_t i, int32_t place_id, float* slice,
                           Reducer<kRowWarps>& reducer, Shared& s) {
  const Place& place = a.states[place_id];
  const float* logits = a.logits + i * a.vocab;
  SampledRow* out = a.results + i;
  Row row(slice_memory(slice, a.workspace, i, a.vocab), a.vocab);
  Peak peak = load(row, logits, a.vocab, reducer);
  int32_t token = -1;
  double lse = 0;
  int32_t top = -1;
  if (finite(peak)) {
    top = place.top_logprobs;
    if (top >= 0) lse = log_sum_exp(row, peak.value, reducer);
    if (top > 0) write_top(row, min(top, SampledRow::kMaxTop), a.vocab, lse, s, out);
    if (change_logits(row, place, a.counts + int64_t{place_id} * a.vocab)) {
      peak = no_peak();
      row.for_each([&](float v, int32_t e) { add(peak, v, row.first_id() + e); });
      peak = merged(peak, reducer);
    }
    if (finite(peak)) {
      if (takes_peak(place)) {
        token = peak.id;
      } else {
        draw(row, place, peak.value, a.positions[i], a.vocab, s);
        token = kUndecided;  // block 0 will know
      }
    }
  }
  // No block may go on, or end, while another reads its shared memory.
  cluster_sync();
  if (row.rank() != 0 || threadIdx.x != 0) return;
  if (token == kUndecided) token = s.token;
  out->logprob = token >= 0 && top >= 0 ? static_cast<float>(logits[token] - lse) : 0.0f;
  if (top <= 0 || token < 0) out->num_top = 0;
  store_token(a, i, place_id, token);
}

// The rows that draw_kernel leaves, a cluster for one after the other.
__global__ void __launch_bounds__(kRowThreads, 2) sample_kernel(SampleArgs a, int32_t n) {
  extern __shared__ __align__(16) float slice[];
  __shared__ Shared s;
  pdl_trigger();
  pdl_wait();
  Reducer<kRowWarps> reducer(&s.reducer);
  const auto clusters = static_cast<int32_t>(gridDim.x) / cluster_size();
  for (auto i = static_cast<int32_t>(blockIdx.x) / cluster_size(); i < n; i += clusters) {
    if (a.left[i]) sample_row(a, i, a.places[i], slice, reducer, s);  // of all blocks alike
  }
}

__global__ void __launch_bounds__(kRowThreads, 2) logprobs_kernel(LogprobArgs a) {
  extern __shared__ __align__(16) float slice[];
  __shared__ Shared s;
  pdl_trigger();
  pdl_wait();
  const int64_t i = blockIdx.x / cluster_size();
  const float* logits = a.logits + i * a.vocab;
  SampledRow* out = a.out + i;
  Row row(slice_memory(slice, a.workspace, i, a.vocab), a.vocab);
  Reducer<kRowWarps> reducer(&s.reducer);
  const Peak peak = load(row, logits, a.vocab, reducer);
  double lse = 0;
  if (finite(peak)) {
    lse = log_sum_exp(row, peak.value, reducer);
    if (a.top > 0) write_top(row, min(a.top, SampledRow::kMaxTop), a.vocab, lse, s, out);
  }
  cluster_sync();
  if (row.rank() != 0 || threadIdx.x != 0) return;
  const int32_t id = a.ids[i];
  out->token = id;
  out->logprob = !finite(peak)             ? NAN
                 : id >= 0 && id < a.vocab ? static_cast<float>(logits[id] - lse)
                                           : 0.0f;
  if (!finite(peak) || a.top <= 0) out->num_top = 0;
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const int32_t* ids, int32_t n, int32_t first_output, int32_t vocab,
                 uint32_t* counts) {
  pdl_trigger();
  pdl_wait();
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= n) return;
  const int32_t id = ids[i];
  if (id < 0 || id >= vocab) return;
  if (i < first_output) {
    atomicOr(&counts[id], kInPrompt);
  } else {
    atomicAdd(&counts[id], 1u);
  }
}

__global__ void __launch_bounds__(kThreads)
    fill_ids_kernel(int32_t* ids, int32_t n, const int32_t* last_tokens) {
  pdl_trigger();
  pdl_wait();
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i < n && ids[i] < 0) ids[i] = last_tokens[-1 - ids[i]];
}

LaunchShape row_shape(int32_t n, int32_t cluster, int64_t slice_bytes) {
  return {.grid = dim3(static_cast<uint32_t>(n * cluster)),
          .block = dim3(kRowThreads),
          .shared_bytes = static_cast<uint32_t>(slice_bytes),
          .cluster = static_cast<uint32_t>(cluster)};
}

}  // namespace

int64_t sampler_static_bytes() {
  return sizeof(Shared);
}

Status prepare_sampler_kernels(int64_t slice_bytes) {
  for (const void* kernel : {reinterpret_cast<const void*>(sample_kernel),
                             reinterpret_cast<const void*>(logprobs_kernel)}) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(slice_bytes));
    if (error != cudaSuccess)
      return internal_error(std::string("the sampler's shared memory: ") +
                            cudaGetErrorString(error));
  }
  return prepare_draw_kernel();
}

void launch_sample(const SampleArgs& args, int32_t n, int32_t cluster, int64_t slice_bytes,
                   device::Stream& stream) {
  if (n == 0) return;
  launch_draw(args, n, cluster, stream);
  const int32_t clusters = cluster > 1 && n > kMaxClusters ? kMaxClusters : n;
  launch_kernel(stream, "sample", row_shape(clusters, cluster, slice_bytes),
                {{"rows", n}, {"vocab", args.vocab}}, sample_kernel, args, n);
}

void launch_logprobs(const LogprobArgs& args, int32_t n, int32_t cluster, int64_t slice_bytes,
                     device::Stream& stream) {
  if (n == 0) return;
  launch_kernel(stream, "logprobs", row_shape(n, cluster, slice_bytes),
                {{"rows", n}, {"vocab", args.vocab}, {"top", args.top}}, logprobs_kernel, args);
}

void launch_count(const int32_t* ids, int32_t n, int32_t first_output, int32_t vocab,
                  uint32_t* counts, device::Stream& stream) {
  if (n == 0) return;
  launch_kernel(stream, "count", blocks_for(n, kThreads), {{"n", n}}, count_kernel, ids, n,
                first_output, vocab, counts);
}

void launch_fill_ids(int32_t* ids, int32_t n, const int32_t* last_tokens, device::Stream& stream) {
  if (n == 0) return;
  launch_kernel(stream, "fill_ids", blocks_for(n, kThreads), {{"n", n}}, fill_ids_kernel, ids, n,
                last_tokens);
}

}  // namespace attune::ops::cuda
