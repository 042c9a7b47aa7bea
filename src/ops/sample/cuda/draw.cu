// Rows whose logits stay as they came, of which nothing but the token is asked for, and that can be
// drawn from few elements or in order of ids. A cluster reads a row twice, the second time from the
// L2 cache: for its peak, and for its probabilities, of which it keeps those that are large enough
// to be drawn. How large that is comes from the first time.
#include <string>

#include "ops/sample/cuda/candidates.cuh"
#include "ops/sample/cuda/draw_math.cuh"
#include "ops/sample/cuda/peak.cuh"

namespace attune::ops::cuda {
namespace {

constexpr int32_t kDrawThreads = 256, kDrawWarps = kDrawThreads / kWarp;
constexpr int32_t kMostWarps = kMaxCluster * kDrawWarps;
using DrawCandidates = Candidates<kDrawThreads>;
constexpr int32_t kMostOwn = 1024;  // keys of a block
constexpr int32_t kBins = 2 * kDrawThreads, kMassBins = kDrawThreads;
constexpr int32_t kMassBinBits = 21;          // four bins for each power of two
constexpr float kMassUnit = 1 << 21;          // kMostOwn of them fit 32 bits
constexpr float kBinsPerUnit = 5.75f;         // of a logit over the temperature: to beyond exp(-87)
constexpr float kSmallest = 1.17549435e-38f;  // below every probability but 0

struct Memory {  // shared
  Reducer<kDrawWarps>::Memory reducer;
  uint32_t bins[kBins];
  uint32_t warp_count[kDrawWarps];
  float bound;
  uint32_t count;                 // of own, of which there may be more than room
  uint32_t mass_bins[kMassBins];  // of own, in kMassUnit, rounded down
  uint64_t own[kMostOwn];         // the block's keys
  // Block 0's:
  double warp_mass[kMostWarps];  // of all warps of the cluster
  double bin_mass[kDrawWarps];
  uint32_t lowest;  // bits of a probability
  uint32_t kept;    // of keys, of which there may be more than room
  int32_t first, last;
  CandidateMemory candidates;
  uint64_t keys[DrawCandidates::kSlots];
};

__device__ __forceinline__ float max_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
#else
  return a != a ? a : b != b ? b : fmaxf(a, b);
#endif
}

struct Four {
  float x[4];
  __device__ __forceinline__ float operator[](int k) const { return x[k]; }
};

// The parts of a row that the cluster's warps read: a warp a run of neighbours, in order of ids.
class Runs {
 public:
  __device__ Runs(const float* row, int32_t vocab)
      : row_(row),
        vocab_(vocab),
        elems_(slice_elems(vocab, cluster_size())),
        run_(static_cast<int32_t>(ceil_div(ceil_div(elems_, kDrawWarps), kStripe)) * kStripe),
        aligned_(vocab % 4 == 0 && reinterpret_cast<uintptr_t>(row) % 16 == 0) {}

  // Of warp `w` of the cluster's.
  __device__ int32_t begin(int32_t w) const {
    return min(w / kDrawWarps * elems_ + min(w % kDrawWarps * run_, elems_), vocab_);
  }
  __device__ int32_t end(int32_t w) const {
    return min(w / kDrawWarps * elems_ + min((w % kDrawWarps + 1) * run_, elems_), vocab_);
  }
  __device__ float at(int32_t id) const { return row_[id]; }

  // fn(four values, id of the first, distance of their ids) over this warp's run, or, if not in
  // order, over its stripes, which the warps have in turns: what is likely lies close together. A
  // lane's ids rise. Behind the end the values are -inf. kAtOnce: loads under way.
  template <int kAtOnce, bool kInOrder, typename Fn>
  __device__ __forceinline__ void for_fours(Fn&& fn) const {
    const int32_t w = cluster_rank() * kDrawWarps + Row::warp();
    const int32_t from = kInOrder ? begin(w) : w * kStripe, to = kInOrder ? end(w) : vocab_;
    const int32_t step = kInOrder ? kStripe : cluster_size() * kDrawWarps * kStripe;
    if (aligned_) {
      for (int32_t id = from + 4 * Row::lane(); id < to; id += kAtOnce * step) {
        float4 v[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u)
          v[u] = id + u * step < to ? *reinterpret_cast<const float4*>(row_ + id + u * step)
                                    : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u)
          fn(Four{v[u].x, v[u].y, v[u].z, v[u].w}, id + u * step, 1);
      }
      return;
    }
    for (int32_t id = from + Row::lane(); id < to; id += step) {
      float v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = id + k * kWarp < to ? row_[id + k * kWarp] : -INFINITY;
      fn(Four{v[0], v[1], v[2], v[3]}, id, kWarp);
    }
  }

  // This thread's part of the row's peak. Where ids lie in fours, the id is the first of the four
  // that has it: see exact().
  __device__ __forceinline__ Peak peak() const {
    Peak own = no_peak();
    float top = -INFINITY;  // or NaN
    for_fours<8, false>([&](const Four& v, int32_t id, int32_t step) {
      if (step != 1) {
#pragma unroll
        for (int k = 0; k < 4; ++k) add(own, v[k], id + k * step);
        return;
      }
      const float four = max_or_nan(max_or_nan(v[0], v[1]), max_or_nan(v[2], v[3]));
      top = max_or_nan(top, four);
      if (four > own.value) {
        own.value = four;
        own.id = id;
      }
    });
    own.bad |= !(top < INFINITY);
    return own;
  }
  __device__ int32_t exact(const Peak& peak) const {
    int32_t id = peak.id;
    while (aligned_ && row_[id] != peak.value) ++id;
    return id;
  }

 private:
  const float* row_;
  int32_t vocab_, elems_, run_;
  bool aligned_;
};

// A probability that is reached by `wanted` elements or more, but not by many more; 0 if there is
// none. Each thread's largest element, at `distance` from the peak in units of the temperature,
// stands for the others: where `wanted` of those are is a bound for all. By all of the cluster.
__device__ float likely_bound(float distance, uint32_t wanted, Memory& s) {
  const auto t = static_cast<int32_t>(threadIdx.x);
  reinterpret_cast<uint2*>(s.bins)[t] = {0, 0};
  if (t == 0) s.bound = 0;
  __syncthreads();
  atomicAdd(&s.bins[static_cast<int32_t>(fminf(distance * kBinsPerUnit, kBins - 1))], 1u);
  cluster_sync();
  uint32_t count[2] = {0, 0};
  for (int32_t r = 0; r < cluster_size(); ++r) {
    const uint2 of = reinterpret_cast<const uint2*>(of_block(s.bins, r))[t];
    count[0] += of.x;
    count[1] += of.y;
  }
  const uint32_t own = count[0] + count[1], upto = warp_scan(own);
  if (Row::lane() == kWarp - 1) s.warp_count[Row::warp()] = upto;
  __syncthreads();
  uint32_t before = upto - own;
  for (int32_t w = 0; w < Row::warp(); ++w) before += s.warp_count[w];
#pragma unroll
  for (int32_t k = 0; k < 2; ++k) {
    const int32_t bin = 2 * t + k;
    // A bit lower: exp's rounding need not rise with its argument.
    if (before < wanted && wanted <= before + count[k] && bin < kBins - 1)
      s.bound = exp_nonpositive(static_cast<float>(bin + 1) / -kBinsPerUnit) * 0.999f;
    before += count[k];
  }
  __syncthreads();
  return s.bound;
}

using Masses = WarpMasses<kMostWarps>;

// Of all warps, which lie in block 0. By a warp of it.
__device__ Masses masses_of(const Memory& s) {
  return Masses(cluster_size() * kDrawWarps, [&](int32_t w) { return s.warp_mass[w]; });
}

struct Drawing {
  float peak, inverse;
  double u;
  __device__ float probability(float logit) const {
    return exp_nonpositive((logit - peak) * inverse);
  }
};

// Block 0's end of a draw in order of ids, of all that min-p leaves.
__device__ int32_t draw_by_id(const Runs& runs, const Drawing& d, float min_p, Memory& s) {
  const Masses masses = masses_of(s);
  double left;
  const int32_t run = masses.find(d.u * masses.total(), &left);
  // Every thread has neighbours of that run.
  const int32_t begin = runs.begin(run), end = runs.end(run);
  const auto each = static_cast<int32_t>(ceil_div(end - begin, kDrawThreads));
  const int32_t from = begin + static_cast<int32_t>(threadIdx.x) * each, to = min(from + each, end);
  const auto probability = [&](int32_t id) {
    const float p = d.probability(runs.at(id));
    return p < min_p ? 0.0f : p;
  };
  double own = 0;
#pragma unroll 8
  for (int32_t id = from; id < to; ++id) own += probability(id);
  const double upto = warp_scan(own);
  if (threadIdx.x == 0) {
    s.first = INT32_MAX;
    s.last = -1;
  }
  if (Row::lane() == kWarp - 1) s.candidates.warp_mass[Row::warp()] = upto;
  __syncthreads();
  double at = upto - own;
  for (int32_t w = 0; w < Row::warp(); ++w) at += s.candidates.warp_mass[w];
  int32_t first = INT32_MAX, last = -1;
  for (int32_t id = from; id < to; ++id) {
    const float p = probability(id);
    if (p <= 0) continue;
    last = id;
    at += p;
    if (first == INT32_MAX && left < at) first = id;
  }
  first = __reduce_min_sync(~0u, first);
  last = __reduce_max_sync(~0u, last);
  if (Row::lane() == 0) {
    atomicMin(&s.first, first);
    atomicMax(&s.last, last);
  }
  __syncthreads();
  return s.first == INT32_MAX ? s.last : s.first;
}

__device__ __forceinline__ int32_t mass_bin(uint32_t bits) {
  return min(static_cast<int32_t>((__float_as_uint(1.0f) - bits) >> kMassBinBits), kMassBins - 1);
}

// Adds up the block's own keys by their probabilities.
__device__ void fill_mass_bins(Memory& s) {
  __syncthreads();
  for (uint32_t k = threadIdx.x; k < min(s.count, kMostOwn); k += kDrawThreads) {
    const auto bits = static_cast<uint32_t>(s.own[k] >> 32);
    atomicAdd(&s.mass_bins[mass_bin(bits)],
              static_cast<uint32_t>(__uint_as_float(bits) * kMassUnit));
  }
}

// Bits of a probability down to which the keys of all blocks have `target` of mass or more; 0 if
// all are needed. By block 0.
__device__ uint32_t needed_bits(double target, Memory& s) {
  const auto t = static_cast<int32_t>(threadIdx.x);
  double own = 0;
  for (int32_t r = 0; r < cluster_size(); ++r) own += of_block(&s, r)->mass_bins[t];
  const double upto = warp_scan(own);
  if (Row::lane() == kWarp - 1) s.bin_mass[Row::warp()] = upto;
  if (t == 0) s.lowest = 0;
  __syncthreads();
  double before = upto - own;
  for (int32_t w = 0; w < Row::warp(); ++w) before += s.bin_mass[w];
  target = fmax(target * kMassUnit, 1e-300);
  if (before < target && target <= before + own && t < kMassBins - 1)
    s.lowest = __float_as_uint(1.0f) - ((t + 1) << kMassBinBits) + 1;
  __syncthreads();
  return s.lowest;
}

// The keys of all blocks from `lowest` bits on, into block 0's. Their number; none if there are
// more than room. By block 0.
__device__ int32_t collect_keys(uint32_t lowest, Memory& s) {
  uint32_t counts[kMaxCluster], most = 0;
#pragma unroll
  for (int32_t r = 0; r < kMaxCluster; ++r) {
    counts[r] = r < cluster_size() ? of_block(&s, r)->count : 0;
    most = max(most, counts[r]);
  }
  if (most > kMostOwn) return 0;
  for (uint32_t k = threadIdx.x; k < most; k += kDrawThreads) {
    uint64_t keys[kMaxCluster];
#pragma unroll
    for (int32_t r = 0; r < kMaxCluster; ++r) keys[r] = k < counts[r] ? of_block(&s, r)->own[k] : 0;
#pragma unroll
    for (uint64_t key : keys) {
      if (key == 0 || key >> 32 < lowest) continue;
      const uint32_t at = atomicAdd(&s.kept, 1u);
      if (at < DrawCandidates::kMax) s.keys[key_slot(static_cast<int32_t>(at))] = key;
    }
  }
  __syncthreads();
  return s.kept <= DrawCandidates::kMax ? static_cast<int32_t>(s.kept) : 0;
}

// `best`: this thread's largest element. The token in block 0's threads; kUndecided if it takes
// more than the likeliest elements.
__device__ int32_t draw(const Runs& runs, const Place& place, int32_t position, int32_t vocab,
                        float best, float peak, Memory& s) {
  const Choice choice = {place.top_k, place.top_p, place.min_p};
  const bool top_k = cuts_top_k(choice.top_k, vocab);
  const bool by_id = !top_k && choice.top_p >= 1.0f;
  const Drawing d = {peak, 1.0f / place.temperature,
                     uniform(place.seed, static_cast<uint64_t>(static_cast<int64_t>(position)))};
  float bound = 0;   // what is less likely is not kept
  bool all = false;  // nothing else can be drawn
  if (!by_id) {
    const int32_t threads = cluster_size() * kDrawThreads;
    bound = likely_bound((peak - best) * d.inverse, top_k ? choice.top_k : threads * 15 / 16, s);
    if (!top_k) bound = fmaxf(bound, choice.min_p);  // kLeastMinP or more: way_of
    bound = fminf(fmaxf(bound, kSmallest), 1.0f);
    all = bound <= fmaxf(top_k ? 0.0f : choice.min_p, kSmallest);
  }
  double sum = 0;
  if (by_id) {
    runs.for_fours<4, true>([&](const Four& v, int32_t, int32_t) {
      float four = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float p = d.probability(v[k]);
        four += p < choice.min_p ? 0.0f : p;
      }
      sum += four;
    });
  } else {
    runs.for_fours<4, false>([&](const Four& v, int32_t id, int32_t step) {
      float p[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) p[k] = d.probability(v[k]);
      sum += (p[0] + p[1]) + (p[2] + p[3]);
      if (fmaxf(fmaxf(p[0], p[1]), fmaxf(p[2], p[3])) < bound) return;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (p[k] < bound) continue;
        const uint32_t at = atomicAdd(&s.count, 1u);
        if (at < kMostOwn) s.own[at] = candidate_key(p[k], id + k * step);
      }
    });
  }
  sum = warp_total(sum);
  if (Row::lane() == 0) of_block(&s, 0)->warp_mass[cluster_rank() * kDrawWarps + Row::warp()] = sum;
  if (!by_id && !top_k) fill_mass_bins(s);
  cluster_sync();
  int32_t count = 0;
  double total = 0;
  if (cluster_rank() == 0 && !by_id) {
    total = masses_of(s).total();
    uint32_t lowest = 0;
    if (!top_k) lowest = needed_bits(static_cast<double>(choice.top_p) * total, s);
    all &= lowest == 0;
    count = collect_keys(lowest, s);
  }
  cluster_sync();  // a block may end: nobody needs its memory any more
  if (cluster_rank() != 0) return kUndecided;
  if (by_id) return draw_by_id(runs, d, choice.min_p, s);
  if (count == 0) return kUndecided;
  return DrawCandidates(s.keys, count, &s.candidates).draw(choice, d.u, top_k, total, all);
}

// A cluster a row.
__global__ void __launch_bounds__(kDrawThreads, 4) draw_kernel(SampleArgs a) {
  __shared__ Memory s;
  pdl_trigger();
  pdl_wait();
  const int64_t i = blockIdx.x / cluster_size();
  const int32_t place_id = a.places[i];
  const bool first = cluster_rank() == 0 && threadIdx.x == 0;
  if (place_id < 0) {  // of all blocks alike, as what follows
    if (first) a.left[i] = 0;
    return;
  }
  const Place& place = a.states[place_id];
  const Way way = way_of(place, a.vocab);
  if (way == Way::kOther) {
    if (first) a.left[i] = 1;
    return;
  }
  s.mass_bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) s.count = s.kept = 0;
  const Runs runs(a.logits + i * a.vocab, a.vocab);
  const Peak own = runs.peak();
  Reducer<kDrawWarps> reducer(&s.reducer);
  const Peak peak = merged(own, reducer);
  int32_t token = -1;
  if (finite(peak) && way == Way::kDraw) {
    token = draw(runs, place, a.positions[i], a.vocab, own.value, peak.value, s);
  } else {
    cluster_sync();  // no block may end while another reads its memory
    if (first && finite(peak)) token = runs.exact(peak);
  }
  if (!first) return;
  a.left[i] = token == kUndecided;
  if (token == kUndecided) return;
  a.results[i].logprob = 0;
  a.results[i].num_top = 0;
  store_token(a, i, place_id, token);
}

}  // namespace

Status prepare_draw_kernel() {
  // Shared memory as the kernels before and after have it: a change of its size waits for them.
  const cudaError_t error = cudaFuncSetAttribute(
      draw_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess)
    return internal_error(std::string("the sampler's shared memory: ") + cudaGetErrorString(error));
  return {};
}

void launch_draw(const SampleArgs& args, int32_t n, int32_t cluster, device::Stream& stream) {
  launch_kernel(stream, "sample_draw",
                {.grid = dim3(static_cast<uint32_t>(n * cluster)),
                 .block = dim3(kDrawThreads),
                 .cluster = static_cast<uint32_t>(cluster)},
                {{"rows", n}, {"vocab", args.vocab}}, draw_kernel, args);
}

}  // namespace attune::ops::cuda
