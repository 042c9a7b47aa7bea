// The tile walk, instantiated by one unit per instruction set (see microkernels.h for why all of it
// is in an unnamed namespace).
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/backends/cpu/block_load.h"
#include "attention/backends/cpu/microkernels.h"

namespace attune::attention::cpu {
namespace {

using tensor::DType;

constexpr int32_t padded(int32_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

// Floats from one row of a scratch matrix to the next: never a multiple of 256 bytes, so that a
// column of 64 rows finds room in the first cache's sets.
constexpr int32_t spread(int32_t n) {
  return padded(n) % 64 == 0 ? padded(n) + 16 : padded(n);
}

// Where the keys of a block lie: K and V of one head and token each.
struct KeyRows {
  const char* k[kBlock];
  const char* v[kBlock];
};

// Softmax state of all rows: maximum, sum, and the weighted sum of V, not yet divided. A row that
// saw no key has m -inf, l 0 and anything in acc; one that saw a NaN has l NaN, and any m.
struct State {
  float *m, *l, *acc;
};

// One thread's scratch, carved from the workspace; arrays begin at whole vectors.
struct Scratch {
  float *q, *scores, *kt, *v, *correction, *shift;
  State split, total;
  uint64_t* words;      // [kMaxRows] of each query's tree, windows applied
  int32_t *low, *high;  // [kMaxRows] keys [low, high) of each query
  KeyRows* rows;        // [2] of this block and of the next one
  const char** v_rows;  // [kBlock] float32

  // Returns the bytes; base may be null to learn them.
  static int64_t carve(char* base, int32_t qk_dim, int32_t v_dim, Scratch* s) {
    const int64_t stride = padded(v_dim);
    int64_t at = 0;
    const auto take = [&]<typename T>(T** p, int64_t count) {
      *p = base ? reinterpret_cast<T*>(base + at) : nullptr;
      at += (count * int64_t{sizeof(T)} + 63) / 64 * 64;
    };
    take(&s->q, int64_t{kMaxRows} * qk_dim);
    take(&s->scores, kMaxRows * kBlock);
    take(&s->kt, int64_t{qk_dim} * kBlock);
    take(&s->v, int64_t{kBlock} * spread(qk_dim > v_dim ? qk_dim : v_dim));
    take(&s->correction, kMaxRows);
    take(&s->shift, kMaxRows);
    for (State* state : {&s->split, &s->total}) {
      take(&state->m, kMaxRows);
      take(&state->l, kMaxRows);
      take(&state->acc, kMaxRows * stride);
    }
    take(&s->words, kMaxRows);
    take(&s->low, kMaxRows);
    take(&s->high, kMaxRows);
    take(&s->rows, 2);
    take(&s->v_rows, kBlock);
    return at;
  }
};

// A tile on its way through the keys. Row r is query r / heads, head r % heads of the tile.
class TileRun {
 public:
  TileRun(const Job& job, const Tile& tile, void* scratch)
      : layer_(*job.layer),
        kv_(*job.kv),
        io_(*job.io),
        t_(tile),
        heads_(tile.num_heads),
        rows_(tile.num_q * tile.num_heads),
        stride_(padded(job.kv->v_dim)),
        v_in_k_(kv_.v_offset == 0 && kv_.v_head_stride == kv_.k_head_stride &&
                kv_.v_token_stride == kv_.k_token_stride) {
    Scratch::carve(static_cast<char*>(scratch), kv_.k_dim, kv_.v_dim, &s_);
  }

  void attend() {
    prepare();
    bool any = false;
    for (int32_t i = 0; i < t_.num_splits(); ++i) {
      if (!run_split(i)) continue;
      if (any) {
        merge(s_.total, s_.split);
      } else {
        const State first = s_.split;
        s_.split = s_.total;
        s_.total = first;
        any = true;
      }
    }
    if (!any) clear(s_.total);
    finish();
  }

  void attend_split(int32_t split, float* partial) {
    prepare();
    s_.split = partial_state(partial);
    if (!run_split(split)) clear(s_.split);
  }

  void merge_splits(float* partials) {
    s_.total = partial_state(partials);
    for (int32_t i = 1; i < t_.num_splits(); ++i)
      merge(s_.total, partial_state(partials + i * partial_floats(rows_, kv_.v_dim)));
    finish();
  }

  static int64_t partial_floats(int32_t rows, int32_t v_dim) {
    return 2 * padded(rows) + int64_t{rows} * padded(v_dim);
  }

 private:
  State partial_state(float* p) const { return {p, p + padded(rows_), p + 2 * padded(rows_)}; }
  void clear(const State& state) const {
    for (int32_t r = 0; r < rows_; ++r) {
      state.m[r] = kMinusInf;
      state.l[r] = 0.0f;
    }
  }

  // Queries, scaled, and the keys that each of them sees.
  void prepare() {
    for (int32_t q = 0; q < t_.num_q; ++q) {
      load_row(io_.q, io_.q_dtype,
               int64_t{t_.first_token + q} * io_.q_stride + int64_t{t_.first_head} * kv_.k_dim,
               heads_ * kv_.k_dim, s_.q + int64_t{q} * heads_ * kv_.k_dim);
      visible_keys(q);
    }
    const Vec scale = simd::set1(layer_.scale);
    const int32_t n = rows_ * kv_.k_dim;
    for (int32_t i = 0; i < n; i += kLanes)  // q's room is rounded up to whole vectors
      simd::store(s_.q + i, simd::load(s_.q + i) * scale);
  }

  int32_t prefix() const { return t_.kv_len - t_.q_len; }
  static int32_t bits(uint64_t word) { return static_cast<int32_t>(__builtin_popcountll(word)); }

  void visible_keys(int32_t q) {
    const int32_t i = t_.first_q + q;
    const int32_t position = prefix() + (t_.tree_mask ? bits(t_.tree_mask[i]) - 1 : i);
    int32_t high = t_.causal && !t_.tree_mask ? position + 1 : t_.kv_len;
    if (high < 0) high = 0;
    int32_t low = layer_.window > 0 ? position - layer_.window + 1 : 0;
    if (low < 0) low = 0;
    if (t_.tree_mask) {
      if (low > prefix()) low = prefix() > 0 ? prefix() : 0;
      uint64_t word = t_.causal ? t_.tree_mask[i] : ~uint64_t{0};
      for (int32_t j = 0; layer_.window > 0 && j < t_.q_len; ++j)
        if (position - (prefix() + bits(t_.tree_mask[j]) - 1) >= layer_.window)
          word &= ~(uint64_t{1} << j);
      s_.words[q] = word;
    }
    s_.low[q] = low;
    s_.high[q] = high;
  }

  // false: no row sees a key of this split, and the state was left alone.
  bool run_split(int32_t split) {
    int32_t low = t_.kv_len, high = 0;
    for (int32_t q = 0; q < t_.num_q; ++q) {
      if (s_.low[q] >= s_.high[q]) continue;
      low = s_.low[q] < low ? s_.low[q] : low;
      high = s_.high[q] > high ? s_.high[q] : high;
    }
    int32_t begin = split * t_.split_keys, end = begin + t_.split_keys;
    if (begin < low / kBlock * kBlock) begin = low / kBlock * kBlock;
    if (end > high) end = high;
    if (begin >= end) return false;
    clear(s_.split);
    KeyRows *rows = s_.rows, *next = s_.rows + 1;
    locate(begin, end - begin < kBlock ? end - begin : kBlock, rows);
    for (int32_t b = begin; b < end; b += kBlock) {
      const int n = end - b < kBlock ? end - b : kBlock;
      const int left = end - b - n;
      if (left > 0) locate(b + n, left < kBlock ? left : kBlock, next);
      run_block(b, n, *rows, left > 0 ? next : nullptr);
      KeyRows* done = rows;
      rows = next;
      next = done;
    }
    return true;
  }

  // Keys [b, b + n). Nothing beyond them is read: what lies there may be anything.
  void run_block(int32_t b, int n, const KeyRows& rows_at, const KeyRows* next) {
    // Rows without a key here at either end are left out; high and low never fall with the query,
    // except in trees, whose rows all reach to the end.
    int32_t first = 0, last = t_.num_q;
    while (first < last && s_.high[first] <= b) ++first;
    while (last > first && s_.low[last - 1] >= b + n) --last;
    if (first == last) return;
    const int32_t row = first * heads_, rows = (last - first) * heads_;
    load_keys(n, rows, rows_at, next);
    score(row, rows, n);
    // Queries [full, full_end) see all of the block, and are weighed together.
    int32_t full = first;
    while (full < last && !sees_all(full, b, n)) ++full;
    int32_t full_end = full;
    while (full_end < last && sees_all(full_end, b, n)) ++full_end;
    softmax(full * heads_, (full_end - full) * heads_, 0, n);
    weigh(full * heads_, (full_end - full) * heads_, 0, n, next);
    for (int32_t q = first; q < last; ++q) {
      if (q >= full && q < full_end) continue;
      const int begin = s_.low[q] > b ? s_.low[q] - b : 0;
      const int end = s_.high[q] < b + n ? s_.high[q] - b : n;
      if (begin >= end) continue;
      if (t_.tree_mask) hide(q, b, n);
      softmax(q * heads_, heads_, begin, end);
      weigh(q * heads_, heads_, begin, end, nullptr);
    }
  }

  bool sees_all(int32_t q, int32_t b, int n) const {
    return s_.low[q] <= b && s_.high[q] >= b + n && (!t_.tree_mask || b + n <= prefix());
  }

  // Scores of tree tokens that query q does not see.
  void hide(int32_t q, int32_t b, int n) {
    for (int32_t h = 0; h < heads_; ++h) {
      float* s = s_.scores + (q * heads_ + h) * kBlock;
      for (int j = 0; j < n; ++j) {
        const int32_t node = b + j - prefix();
        if (node >= 0 && !((s_.words[q] >> node) & 1)) s[j] = kMinusInf;
      }
    }
  }

  // Rows beyond n repeat the last one, for whoever reads ahead.
  void locate(int32_t b, int n, KeyRows* rows) const {
    const int64_t k_head = int64_t{t_.kv_head} * kv_.k_head_stride;
    const int64_t v_head = kv_.v_offset + int64_t{t_.kv_head} * kv_.v_head_stride;
    const char* const pool = static_cast<const char*>(kv_.base);
    for (int i = 0; i < n;) {
      const int32_t page = (b + i) / kv_.page_size, offset = (b + i) % kv_.page_size;
      const char* base = t_.slots ? pool + int64_t{t_.slots[page]} * kv_.page_stride : pool;
      const int64_t first = t_.slots ? offset : int64_t{t_.first_row} + b + i;
      const int run = t_.slots && kv_.page_size - offset < n - i ? kv_.page_size - offset : n - i;
      for (int j = 0; j < run; ++j, ++i) {
        rows->k[i] = base + k_head + (first + j) * kv_.k_token_stride;
        rows->v[i] = base + v_head + (first + j) * kv_.v_token_stride;
      }
    }
    for (int i = n; i < kBlock; ++i) {
      rows->k[i] = rows->k[n - 1];
      rows->v[i] = rows->v[n - 1];
    }
  }

  // K transposed for the scores, and V as float32 rows, for `rows` rows of the tile. Where V lies
  // in K, a row is read and converted once for both.
  void load_keys(int n, int32_t rows, const KeyRows& at, const KeyRows* next) {
    const char* const* next_k = next ? next->k : nullptr;
    if (v_in_k_ && kv_.dtype != DType::kF32) {
      widen(at.k, next_k, n, kv_.k_dim);
      return transpose_keys(s_.v_rows, nullptr, n, DType::kF32, kv_.k_dim, s_.kt);
    }
    transpose_keys(at.k, next_k, n, kv_.dtype, kv_.k_dim, s_.kt);
    // Rows a multiple of 1 KiB apart push each other out of the first cache, which matters if they
    // are read more than once.
    const bool apart = kv_.v_token_stride % 1024 != 0 || rows <= kRowGroup;
    if (kv_.dtype == DType::kF32 && stride_ == kv_.v_dim && apart) {
      for (int i = 0; i < n; ++i) s_.v_rows[i] = at.v[i];
    } else {
      widen(at.v, nullptr, n, kv_.v_dim);
    }
  }

  // n rows of `dim` elements as float32 in v, whole vectors ending with zeros.
  void widen(const char* const* from, const char* const* next, int n, int32_t dim) {
    const int64_t elem = kv_.dtype == DType::kF32 ? 4 : 2;
    for (int i = 0; i < n; ++i) {
      float* to = s_.v + int64_t{i} * spread(dim);
      for (int64_t b = 0; next && b < dim * elem; b += 64) _mm_prefetch(next[i] + b, _MM_HINT_T0);
      load_row(from[i], kv_.dtype, 0, dim, to);
      for (int32_t d = dim; d < padded(dim); ++d) to[d] = 0.0f;
      s_.v_rows[i] = reinterpret_cast<const char*>(to);
    }
  }

  void score(int32_t row, int32_t rows, int n) {
    const int vectors = (n + kLanes - 1) / kLanes;
    for_row_groups(rows, [&]<int MR>(int32_t r) {
      score_rows<MR, kWidth<MR>>(s_.q + int64_t{row + r} * kv_.k_dim, kv_.k_dim, s_.kt, vectors,
                                 s_.scores + (row + r) * kBlock);
    });
    if (layer_.soft_cap <= 0) return;
    const Vec cap = simd::set1(layer_.soft_cap), inv = simd::set1(1.0f / layer_.soft_cap);
    for (int32_t r = row; r < row + rows; ++r) {
      float* s = s_.scores + r * kBlock;
      for (int j = 0; j < vectors * kLanes; j += kLanes)
        simd::store(s + j, cap * tanh(simd::load(s + j) * inv));
    }
  }

  void softmax(int32_t row, int32_t rows, int begin, int end) {
    for (int32_t r = row; r < row + rows; ++r)
      s_.correction[r] = block_max(s_.scores + r * kBlock, begin, end);
    advance_max(s_.split.m + row, s_.correction + row, s_.shift + row, rows);
    for (int32_t r = row; r < row + rows; ++r) {
      const float sum = exp_and_sum(s_.scores + r * kBlock, begin, end, s_.shift[r]);
      s_.split.l[r] = __builtin_fmaf(s_.split.l[r], s_.correction[r], sum);
    }
  }

  // Meanwhile the first rows read ahead in V of the next block.
  void weigh(int32_t row, int32_t rows, int begin, int end, const KeyRows* next) {
    const int64_t elem = kv_.dtype == DType::kF32 ? 4 : 2;
    for_row_groups(rows, [&]<int MR>(int32_t r) {
      value_rows<MR, kWidth<MR>>(
          {s_.scores + (row + r) * kBlock, s_.v_rows, begin, end, s_.correction + row + r,
           s_.split.acc + int64_t{row + r} * stride_, stride_,
           next && r == 0 && !v_in_k_ ? next->v : nullptr, elem},
          0);
    });
  }

  // a += b, row by row; an empty one changes nothing.
  void merge(const State& a, const State& b) const {
    for (int32_t r = 0; r < rows_; ++r) {
      if (b.l[r] == 0.0f) continue;
      const bool fresh = a.m[r] == kMinusInf;
      const float top = a.m[r] > b.m[r] ? a.m[r] : b.m[r];
      const float wa = fresh ? 0.0f : exp1(a.m[r] - top), wb = exp1(b.m[r] - top);
      a.m[r] = top;
      a.l[r] = __builtin_fmaf(b.l[r], wb, a.l[r] * wa);
      float* to = a.acc + int64_t{r} * stride_;
      const float* from = b.acc + int64_t{r} * stride_;
      for (int32_t j = 0; j < stride_; j += kLanes) {
        const Vec add = simd::load(from + j);
        const Vec sum = simd::fma(add, simd::set1(wb), simd::load(to + j) * simd::set1(wa));
        simd::store(to + j, fresh ? add : sum);
      }
    }
  }

  static float exp1(float x) { return simd::first_lane(simd::exp(simd::set1(x))); }

  // Divides, and writes output and LSE.
  void finish() {
    const State& s = s_.total;
    for (int32_t r = 0; r < rows_; ++r) {
      const int32_t token = t_.first_token + r / heads_, head = t_.first_head + r % heads_;
      float top = s.m[r], sum = s.l[r], weight = 1.0f;
      if (layer_.sinks) {
        const float sink = layer_.sinks[head];
        top = s.m[r] > sink ? s.m[r] : sink;
        weight = exp1(s.m[r] - top);
        sum = __builtin_fmaf(sum, weight, exp1(sink - top));
      }
      const bool empty = s.l[r] == 0.0f;
      const Vec factor = simd::set1(weight / sum);
      float* acc = s.acc + int64_t{r} * stride_;
      for (int32_t j = 0; j < stride_; j += kLanes)
        simd::store(acc + j, empty ? simd::zero() : simd::load(acc + j) * factor);
      store_row(acc, kv_.v_dim, io_.out_dtype, io_.out,
                int64_t{token} * io_.out_stride + int64_t{head} * kv_.v_dim);
      if (io_.lse)
        io_.lse[int64_t{token} * layer_.q_heads + head] =
            sum == 0.0f ? kMinusInf : top + ::logf(sum);
    }
  }

  const LayerParams& layer_;
  const kv::PagedKvView& kv_;
  const Io& io_;
  const Tile& t_;
  const int32_t heads_, rows_, stride_;
  const bool v_in_k_;
  Scratch s_;
};

int64_t scratch_bytes(int32_t qk_dim, int32_t v_dim) {
  Scratch s;
  return Scratch::carve(nullptr, qk_dim, v_dim, &s);
}

constexpr Kernels kKernels{
    .scratch_bytes = scratch_bytes,
    .partial_floats = TileRun::partial_floats,
    .attend = [](const Job& job, const Tile& tile,
                 void* scratch) { TileRun(job, tile, scratch).attend(); },
    .attend_split = [](const Job& job, const Tile& tile, int32_t split, float* partial,
                       void* scratch) { TileRun(job, tile, scratch).attend_split(split, partial); },
    .merge_splits = [](const Job& job, const Tile& tile, float* partials,
                       void* scratch) { TileRun(job, tile, scratch).merge_splits(partials); },
};

}  // namespace
}  // namespace attune::attention::cpu
