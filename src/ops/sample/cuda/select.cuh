// Where a row's probabilities, ordered by (larger first, then smaller id), pass a count or a mass:
// a radix descent over their bits, ten at a time, with exact sums of integers, so that the result
// does not depend on the order in which threads add.
#pragma once

#include "ops/sample/cuda/row.cuh"

namespace attune::ops::cuda {

constexpr int32_t kDigitBits = 10, kBins = 1 << kDigitBits;
constexpr int32_t kPart = kBins / kMaxCluster;  // bins that a block of a full cluster adds up
static_assert(kBins == 2 * kRowThreads && kPart * 4 == kRowThreads);

// Mantissas of 24 bits are added in two halves, each of which fits 32 bits for 2^20 elements.
struct Histogram {
  uint32_t count[kBins], high[kBins], low[kBins];
};

// Over all bins from the top to this one, itself included.
struct Cumulative {
  double mass[kBins];
  uint32_t count[kBins];
};

enum class Goal : uint8_t {
  kCount,    // the count-th element
  kReach,    // the first with which the mass is >= mass
  kPass,     // the first with which the mass is > mass
  kAtLeast,  // all elements of these bits or more
};

struct Target {
  Goal goal;
  double mass;
  uint32_t count, bits;
};

// The elements whose bits are `bits`, and those before them in the order.
struct Found {
  uint32_t bits, count_above, count_equal;
  double mass_above;
  __device__ double probability() const { return static_cast<double>(__uint_as_float(bits)); }
};

struct SelectMemory {  // shared
  Histogram histogram[2];
  Cumulative first;  // of the first digit
  double part_mass[kPart];
  uint32_t part_count[kPart];
  double warp_mass[kRowWarps];
  uint32_t warp_count[kRowWarps];
  int32_t lowest;  // bin that is not empty
  int32_t bin;     // that meets the target; -1: none yet
  uint32_t count_above, count_equal;
  double mass_above;
};

// Inclusive over the lanes.
template <typename T>
__device__ __forceinline__ T warp_scan(T v) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const T below = __shfl_up_sync(~0u, v, offset);
    if (Row::lane() >= offset) v += below;
  }
  return v;
}

// The masses of a cluster's warps, at most kMost, up to where a sum passes a target. By a warp.
template <int32_t kMost>
class WarpMasses {
 public:
  // mass(w): that of warp w of the cluster's `warps`, in order of ids.
  template <typename Mass>
  __device__ WarpMasses(int32_t warps, Mass mass) {
    double own = 0;
#pragma unroll
    for (int32_t k = 0; k < kEach; ++k) {
      const int32_t w = Row::lane() * kEach + k;
      own_[k] = w < warps ? mass(w) : 0;
      own += own_[k];
    }
    upto_ = warp_scan(own);
  }
  __device__ double total() const {
    return __shfl_sync(~0u, upto_, kWarp - 1);
  }

  // The warp in which the sum passes `target`, and what is left for it; where rounding leaves none,
  // the last that has any.
  __device__ int32_t find(double target, double* left) const {
    double below = __shfl_up_sync(~0u, upto_, 1);
    if (Row::lane() == 0) below = 0;
    int32_t chosen = INT32_MAX, last = -1;
    double rest = 0;
#pragma unroll
    for (int32_t k = 0; k < kEach; ++k) {
      if (own_[k] > 0) {
        last = Row::lane() * kEach + k;
        if (chosen == INT32_MAX && target < below + own_[k]) {
          chosen = last;
          rest = target - below;
        }
      }
      below += own_[k];
    }
    chosen = __reduce_min_sync(~0u, chosen);
    last = __reduce_max_sync(~0u, last);
    if (chosen == INT32_MAX) {
      *left = INFINITY;
      return last;
    }
    *left = __shfl_sync(~0u, rest, chosen / kEach);
    return chosen;
  }

 private:
  static constexpr int32_t kEach = kMost / kWarp;
  static_assert(kMost % kWarp == 0);
  double own_[kEach], upto_;  // upto_: of all to this lane's
};

// The row's values are probabilities in [0, 1], of which one is 1; zeros take no part.
class Selector {
 public:
  // By all threads of the cluster, as find().
  __device__ Selector(const Row& row, SelectMemory* memory) : row_(row), m_(memory) {
    add_up(kFirstShift, 0);
    store_first();
  }
  // Of all elements. Exact but for rounding of the sum of bins.
  __device__ double total() const { return m_->first.mass[0]; }

  // The first digit of find(): a bound below which nothing is needed for the target, with the
  // number of elements down to it.
  __device__ Found bound(const Target& target) {
    Found found = {0, 0, 0, 0};
    pick_first(target, &found);
    return found;
  }
  __device__ Found find(const Target& target) {
    Found found = bound(target);
    for (int32_t shift = kFirstShift - kDigitBits; shift >= 0; shift -= kDigitBits) {
      add_up(shift, found.bits);
      pick(shift, target, &found);
    }
    return found;
  }

  // The id of the m-th (from 1) of the elements with found.bits, of the find() just made, in
  // *token of block 0, once the cluster has met again.
  __device__ void locate(const Found& found, uint32_t m, int32_t* token) {
    const uint32_t bin = found.bits % kBins;
    uint32_t before = 0, own = 0;
    for (int32_t r = 0; r <= row_.rank(); ++r) {
      own = of_block(m_, r)->histogram[turn_ ^ 1].count[bin];
      if (r < row_.rank()) before += own;
    }
    if (m <= before || m > before + own) return;  // of the whole block alike
    uint32_t mine = 0;
    row_.for_each([&](float v, int32_t) { mine += __float_as_uint(v) == found.bits; });
    mine = __reduce_add_sync(~0u, mine);
    if (Row::lane() == 0) m_->warp_count[Row::warp()] = mine;
    __syncthreads();
    for (int32_t w = 0; w < Row::warp(); ++w) before += m_->warp_count[w];
    if (m <= before || m > before + mine) return;  // of the whole warp alike
    row_.for_stripes([&](const float(&v)[4], int32_t i) {
      uint32_t hits = 0;
      for (float x : v) hits += __float_as_uint(x) == found.bits;
      const uint32_t upto = before + warp_scan(hits);
      if (m > upto - hits && m <= upto) {
        uint32_t left = m - (upto - hits);
        for (int32_t k = 0; k < 4; ++k)
          if (__float_as_uint(v[k]) == found.bits && --left == 0)
            *of_block(token, 0) = row_.first_id() + i + k;
      }
      before = __shfl_sync(~0u, upto, kWarp - 1);
      return m <= before;
    });
  }

 private:
  static constexpr int32_t kFirstShift = 2 * kDigitBits;  // 1.0f is below 2^30

  // The histogram of one digit of all elements that have the digits above of `prefix`, over the
  // cluster; then cumulative in mass_[], count_[], of this thread's two bins.
  __device__ void add_up(int32_t shift, uint32_t prefix) {
    Histogram& h = m_->histogram[turn_];
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b < kBins; b += kRowThreads)
      h.count[b] = h.high[b] = h.low[b] = 0;
    if (threadIdx.x == 0) {
      m_->bin = -1;
      m_->lowest = kBins;
    }
    __syncthreads();
    const uint32_t wanted = shift == kFirstShift ? 0 : prefix >> (shift + kDigitBits);
    row_.for_each([&](float v, int32_t) {
      const uint32_t bits = __float_as_uint(v);
      if (bits == 0 || bits >> (shift + kDigitBits) != wanted) return;
      const uint32_t bin = (bits >> shift) % kBins;
      const uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
      atomicAdd(&h.count[bin], 1u);
      atomicAdd(&h.high[bin], mantissa >> 12);
      atomicAdd(&h.low[bin], mantissa & 0xfffu);
    });
    cluster_sync();
    if (row_.blocks() == kMaxCluster) {
      share(shift, prefix);
    } else {
      for (int32_t k = 0; k < 2; ++k) {
        const int32_t bin = bin_of(k);
        uint64_t mantissas = 0;
        own_count_[k] = 0;
        for (int32_t r = 0; r < row_.blocks(); ++r) {
          const Histogram& of = of_block(m_, r)->histogram[turn_];
          mantissas += (uint64_t{of.high[bin]} << 12) + of.low[bin];
          own_count_[k] += of.count[bin];
        }
        own_mass_[k] = mass_of(mantissas, bin, shift, prefix);
      }
    }
    scan();
    turn_ ^= 1;
  }

  __device__ static double mass_of(uint64_t mantissas, int32_t bin, int32_t shift,
                                   uint32_t prefix) {
    const uint32_t bits = shift == kFirstShift ? static_cast<uint32_t>(bin) << shift : prefix;
    const int32_t exponent = static_cast<int32_t>(bits >> 23) - 150;
    return static_cast<double>(mantissas) * __hiloint2double((exponent + 1023) << 20, 0);
  }

  // Every block adds up an eighth of the bins, four threads a bin; then each takes its two.
  __device__ void share(int32_t shift, uint32_t prefix) {
    const auto part = static_cast<int32_t>(threadIdx.x / 4);
    const int32_t bin = row_.rank() * kPart + part;
    uint64_t mantissas = 0;
    uint32_t count = 0;
#pragma unroll
    for (int32_t r = 0; r < kMaxCluster; r += 4) {
      const Histogram& of =
          of_block(m_, r + static_cast<int32_t>(threadIdx.x % 4))->histogram[turn_];
      count += of.count[bin];
      mantissas += (uint64_t{of.high[bin]} << 12) + of.low[bin];
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      count += __shfl_xor_sync(~0u, count, offset);
      mantissas += __shfl_xor_sync(~0u, mantissas, offset);
    }
    if (threadIdx.x % 4 == 0) {
      m_->part_mass[part] = mass_of(mantissas, bin, shift, prefix);
      m_->part_count[part] = count;
    }
    cluster_sync();
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      const SelectMemory* of = of_block(m_, bin_of(k) / kPart);
      own_mass_[k] = of->part_mass[bin_of(k) % kPart];
      own_count_[k] = of->part_count[bin_of(k) % kPart];
    }
  }

  __device__ static int32_t bin_of(int32_t k) {
    return kBins - 1 - 2 * static_cast<int32_t>(threadIdx.x) - k;
  }

  // above_*: of all bins above this thread's two.
  __device__ void scan() {
    const uint32_t count = own_count_[0] + own_count_[1];
    const double mass_upto = warp_scan(own_mass_[0] + own_mass_[1]);
    const uint32_t count_upto = warp_scan(count);
    if (Row::lane() == kWarp - 1) {
      m_->warp_mass[Row::warp()] = mass_upto;
      m_->warp_count[Row::warp()] = count_upto;
    }
    const double mass_before = __shfl_up_sync(~0u, mass_upto, 1);
    above_mass_ = 0;
    above_count_ = count_upto - count;
    __syncthreads();
    for (int32_t w = 0; w < Row::warp(); ++w) {
      above_mass_ += m_->warp_mass[w];
      above_count_ += m_->warp_count[w];
    }
    if (Row::lane() > 0) above_mass_ += mass_before;
  }

  __device__ void store_first() {
    m_->first.mass[bin_of(0)] = above_mass_ + own_mass_[0];
    m_->first.mass[bin_of(1)] = above_mass_ + own_mass_[0] + own_mass_[1];
    m_->first.count[bin_of(0)] = above_count_ + own_count_[0];
    m_->first.count[bin_of(1)] = above_count_ + own_count_[0] + own_count_[1];
    __syncthreads();
  }

  // The first digit's bins were kept.
  __device__ void pick_first(const Target& target, Found* found) {
    if (threadIdx.x == 0) {
      m_->bin = -1;
      m_->lowest = kBins;
    }
    __syncthreads();
    const Cumulative& c = m_->first;
    const int32_t high = bin_of(0), low = bin_of(1);
    above_mass_ = high == kBins - 1 ? 0 : c.mass[high + 1];
    above_count_ = high == kBins - 1 ? 0 : c.count[high + 1];
    own_mass_[0] = c.mass[high] - above_mass_;
    own_mass_[1] = c.mass[low] - c.mass[high];
    own_count_[0] = c.count[high] - above_count_;
    own_count_[1] = c.count[low] - c.count[high];
    pick(kFirstShift, target, found);
  }

  // The highest bin with which the target is met; *found grows by its digit. Where rounding leaves
  // none, it is the lowest that is not empty.
  __device__ void pick(int32_t shift, const Target& target, Found* found) {
    const double mass[3] = {found->mass_above + above_mass_,
                            found->mass_above + (above_mass_ + own_mass_[0]),
                            found->mass_above + (above_mass_ + (own_mass_[0] + own_mass_[1]))};
    const uint32_t count[3] = {found->count_above + above_count_,
                               found->count_above + above_count_ + own_count_[0],
                               found->count_above + above_count_ + own_count_[0] + own_count_[1]};
    const auto digit = static_cast<int32_t>((target.bits >> shift) % kBins);
    int32_t hit = -1;
    for (int32_t k = 1; k >= 0; --k) {
      const bool met = target.goal == Goal::kAtLeast ? bin_of(k) == digit
                       : own_mass_[k] <= 0           ? false
                       : target.goal == Goal::kCount ? count[k + 1] >= target.count
                       : target.goal == Goal::kReach ? mass[k + 1] >= target.mass
                                                     : mass[k + 1] > target.mass;
      if (met) hit = bin_of(k);
    }
    hit = __reduce_max_sync(~0u, hit);
    if (Row::lane() == 0 && hit >= 0) atomicMax(&m_->bin, hit);
    __syncthreads();
    int32_t bin = m_->bin;
    if (bin < 0) {  // of all threads of the cluster alike
      for (int32_t k = 0; k < 2; ++k)
        if (own_mass_[k] > 0) atomicMin(&m_->lowest, bin_of(k));
      __syncthreads();
      bin = m_->lowest;
    }
    for (int32_t k = 0; k < 2; ++k) {
      if (bin_of(k) != bin) continue;
      m_->mass_above = mass[k];
      m_->count_above = count[k];
      m_->count_equal = own_count_[k];
    }
    __syncthreads();
    found->bits |= static_cast<uint32_t>(bin) << shift;
    found->mass_above = m_->mass_above;
    found->count_above = m_->count_above;
    found->count_equal = m_->count_equal;
    __syncthreads();
  }

  const Row& row_;
  SelectMemory* m_;
  int32_t turn_ = 0;
  double own_mass_[2], above_mass_ = 0;
  uint32_t own_count_[2], above_count_ = 0;
};

}  // namespace attune::ops::cuda
