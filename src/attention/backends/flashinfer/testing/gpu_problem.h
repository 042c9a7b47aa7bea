// A random batch in a paged pool on the GPU, and what attention over it is in float64. Unused rows,
// unused slots and outputs before a run are NaN.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "tensor/half.h"

namespace attune::attention::testing {

using tensor::DType;

struct Seq {
  int32_t q_len = 1, kv_len = 1;
  // Sequences of the same name have the same keys and queries at the same places, in any problem of
  // the same shape; -1: their number in the batch.
  int32_t name = -1;
};

// Normal numbers, quickly: a draw is an entry of a table.
class Normals {
 public:
  explicit Normals(uint64_t seed) : state_(seed) {}
  // Index of a draw.
  uint32_t next() {
    if (left_ == 0) {
      uint64_t z = (state_ += 0x9e3779b97f4a7c15);  // splitmix64
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      bits_ = z ^ (z >> 31);
      left_ = 4;
    }
    --left_;
    const auto index = static_cast<uint32_t>(bits_ & 0xffff);
    bits_ >>= 16;
    return index;
  }
  struct Entry {
    uint16_t bf16, f16;
    uint8_t fp8;
    float of_bf16, of_f16, of_fp8;
  };
  static const std::vector<Entry>& table() {
    static const std::vector<Entry> made = [] {
      std::vector<Entry> t(65536);
      std::mt19937_64 random(17);
      std::normal_distribution<float> normal;
      for (Entry& e : t) {
        const float x = normal(random);
        e.bf16 = tensor::f32_to_bf16(x);
        e.f16 = tensor::f32_to_f16(x);
        e.fp8 = tensor::f32_to_f8e4m3(x);
        e.of_bf16 = tensor::bf16_to_f32(e.bf16);
        e.of_f16 = tensor::f16_to_f32(e.f16);
        e.of_fp8 = tensor::f8e4m3_to_f32(e.fp8);
      }
      return t;
    }();
    return made;
  }

 private:
  uint64_t state_, bits_ = 0;
  int left_ = 0;
};

struct ProblemOptions {
  std::vector<Seq> seqs;
  Phase phase = Phase::kDecode;
  int32_t q_heads = 8, kv_heads = 2, head_dim = 128, page_size = 16;
  DType kv_dtype = DType::kBF16;
  int32_t window = 0;
  float soft_cap = 0;
  bool tree = false, causal = true;
  bool latent = false;        // MLA: rows of 576, V their first 512, one KV head
  bool page_padding = false;  // bytes between the pool's pages
  bool token_major = false;
  int32_t spare_pages = 0;  // of each sequence, beyond what kv_len needs
  int32_t out_gap = 0;      // elements between the output's rows
  uint64_t seed = 1;
};

// The n-th of several ways in which pages and outputs of prefills lie.
inline void lay_out(ProblemOptions& o, int n) {
  o.page_padding = n % 2;
  o.token_major = n % 3 == 1;
  o.spare_pages = n % 3;
  o.out_gap = n % 3 == 0 ? 40 : 0;
  o.seed = static_cast<uint64_t>(n) + 1;
}

class Problem {
 public:
  explicit Problem(ProblemOptions options) : o(std::move(options)), random_(o.seed) {
    make_batch();
    make_pool();
    make_queries();
  }

  int32_t qk_dim() const { return o.latent ? 576 : o.head_dim; }
  int32_t v_dim() const { return o.latent ? 512 : o.head_dim; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(o.latent ? 192 : qk_dim())); }
  int32_t num_tokens() const { return q_indptr.back(); }
  int64_t out_stride() const { return int64_t{o.q_heads} * v_dim() + o.out_gap; }
  int64_t out_elems() const { return num_tokens() * out_stride(); }
  int64_t q_stride() const { return int64_t{o.q_heads} * qk_dim() + 64; }  // as in a fused row

  Batch batch() const {
    Batch b;
    b.phase = o.phase;
    b.path = o.latent ? Path::kAbsorbed : Path::kPaged;
    b.num_seqs = static_cast<int32_t>(o.seqs.size());
    b.num_tokens = num_tokens();
    for (const Seq& s : o.seqs) {
      b.max_q_len = std::max(b.max_q_len, s.q_len);
      b.max_kv_len = std::max(b.max_kv_len, s.kv_len);
    }
    b.q_indptr = q_indptr.data();
    b.kv_len = kv_len.data();
    b.page_indptr = page_indptr.data();
    b.page_slots = page_slots.data();
    b.page_size = o.page_size;
    b.causal = o.causal;
    b.tree_mask = o.tree ? tree.data() : nullptr;
    return b;
  }

  LayerParams layer() const {
    return {.q_heads = o.q_heads,
            .kv_heads = o.kv_heads,
            .scale = scale(),
            .window = o.window,
            .soft_cap = o.soft_cap};
  }

  kv::PagedKvView view(void* base) const {
    const kv::KvGeometry g{
        .layer = {.kv_heads = o.kv_heads,
                  .k_dim = qk_dim(),
                  .v_dim = v_dim(),
                  .dtype = o.kv_dtype,
                  .v_in_k = o.latent},
        .layers = 1,
        .page_size = o.page_size,
        .order = o.token_major ? kv::PageOrder::kTokenMajor : kv::PageOrder::kHeadMajor};
    kv::PagedKvView v = kv::make_view(g, base, num_slots);
    if (o.page_padding) v.page_stride += 512;
    return v;
  }

  // Attention of one row and query head in float64, and its LSE.
  double expected(int32_t s, int32_t i, int32_t head, std::vector<double>* out) const {
    std::vector<double> scores;
    std::vector<int32_t> keys;
    const double inf = std::numeric_limits<double>::infinity();
    double top = -inf;
    const float* q =
        &queries[(int64_t{q_indptr[s]} + i) * o.q_heads * qk_dim() + int64_t{head} * qk_dim()];
    const int32_t kv_head = head / (o.q_heads / o.kv_heads);
    for (int32_t key = 0; key < kv_len[s]; ++key) {
      if (!visible(s, i, key)) continue;
      double score = dot(q, k_row(s, kv_head, key), qk_dim()) * scale();
      if (o.soft_cap > 0) score = o.soft_cap * std::tanh(score / o.soft_cap);
      keys.push_back(key);
      scores.push_back(score);
      top = std::max(top, score);
    }
    out->assign(v_dim(), 0.0);
    double sum = 0;
    for (size_t n = 0; n < keys.size(); ++n) {
      const double weight = std::exp(scores[n] - top);
      sum += weight;
      const float* v = v_row(s, kv_head, keys[n]);
      for (int32_t d = 0; d < v_dim(); ++d) (*out)[d] += weight * v[d];
    }
    for (double& x : *out) x = sum > 0 ? x / sum : 0;
    return sum > 0 ? top + std::log(sum) : -inf;
  }

  ProblemOptions o;
  std::vector<int32_t> q_indptr, kv_len, page_indptr, page_slots;
  std::vector<uint64_t> tree;
  int32_t num_slots = 0;
  std::vector<char> pool;
  std::vector<uint16_t> q_bits;  // [tokens, q_stride]
  std::vector<float> queries;    // [tokens, q_heads, qk_dim], as bfloat16 has them

 private:
  uint64_t seed_of(size_t s, uint64_t what) const {
    const uint64_t name = o.seqs[s].name < 0 ? 1000 * o.seed + s : o.seqs[s].name;
    return (name << 32) + what;
  }

  void make_batch() {
    q_indptr = page_indptr = {0};
    for (const Seq& s : o.seqs) {
      q_indptr.push_back(q_indptr.back() + s.q_len);
      kv_len.push_back(s.kv_len);
      const int32_t pages = (s.kv_len + o.page_size - 1) / o.page_size + o.spare_pages;
      page_indptr.push_back(page_indptr.back() + pages);
      for (int32_t i = 0; o.tree && i < s.q_len; ++i) {
        // A child of an earlier node, or a root.
        const int32_t parent = i == 0 ? -1 : static_cast<int32_t>(random_() % (i + 1)) - 1;
        const uint64_t above = parent < 0 ? 0 : tree[q_indptr[q_indptr.size() - 2] + parent];
        tree.push_back(above | uint64_t{1} << i);
      }
    }
    num_slots = page_indptr.back() + 3;
    page_slots.resize(num_slots - 1);
    for (int32_t i = 0; i < num_slots - 1; ++i) page_slots[i] = i + 1;
    std::shuffle(page_slots.begin(), page_slots.end(), random_);
    page_slots.resize(page_indptr.back());
  }

  void make_pool() {
    const kv::PagedKvView v = view(nullptr);
    pool.resize(num_slots * v.page_stride);
    if (o.kv_dtype != DType::kF8E4M3) {
      std::fill_n(reinterpret_cast<uint16_t*>(pool.data()), pool.size() / 2, uint16_t{0x7fc0});
    } else {
      std::memset(pool.data(), 0x7f, pool.size());
    }
    for (size_t s = 0; s < o.seqs.size(); ++s) {
      Normals normals(seed_of(s, 0));
      k_.emplace_back(int64_t{kv_len[s]} * o.kv_heads * qk_dim());
      if (!o.latent) v_.emplace_back(int64_t{kv_len[s]} * o.kv_heads * v_dim());
      for (int32_t key = 0; key < kv_len[s]; ++key)
        for (int32_t h = 0; h < o.kv_heads; ++h) {
          const int64_t slot = page_slots[page_indptr[s] + key / o.page_size];
          char* page = pool.data() + slot * v.page_stride;
          const int64_t t = key % o.page_size, row = int64_t{h} * kv_len[s] + key;
          fill_row(page + h * v.k_head_stride + t * v.k_token_stride, &k_[s][row * qk_dim()],
                   qk_dim(), &normals);
          if (!o.latent)
            fill_row(page + v.v_offset + h * v.v_head_stride + t * v.v_token_stride,
                     &v_[s][row * v_dim()], v_dim(), &normals);
        }
    }
  }

  void fill_row(char* to, float* values, int32_t n, Normals* normals) {
    const std::vector<Normals::Entry>& table = Normals::table();
    const bool bf16 = o.kv_dtype == DType::kBF16, fp8 = o.kv_dtype == DType::kF8E4M3;
    for (int32_t d = 0; d < n; ++d) {
      const Normals::Entry& e = table[normals->next()];
      if (fp8) {
        reinterpret_cast<uint8_t*>(to)[d] = e.fp8;
      } else {
        reinterpret_cast<uint16_t*>(to)[d] = bf16 ? e.bf16 : e.f16;
      }
      values[d] = fp8 ? e.of_fp8 : bf16 ? e.of_bf16 : e.of_f16;
    }
  }

  void make_queries() {
    q_bits.assign(num_tokens() * q_stride(), 0x7fc0);
    queries.resize(int64_t{num_tokens()} * o.q_heads * qk_dim());
    const int64_t width = int64_t{o.q_heads} * qk_dim();
    for (size_t s = 0; s < o.seqs.size(); ++s)
      for (int64_t i = 0; i < o.seqs[s].q_len; ++i) {
        const int64_t t = q_indptr[s] + i;
        Normals normals(seed_of(s, 1 + kv_len[s] - o.seqs[s].q_len + i));
        for (int64_t d = 0; d < width; ++d) {
          const uint32_t draw = normals.next();
          q_bits[t * q_stride() + d] = Normals::table()[draw].bf16;
          queries[t * width + d] = Normals::table()[draw].of_bf16;
        }
      }
  }

  const float* k_row(int32_t s, int32_t h, int32_t key) const {
    return &k_[s][(int64_t{h} * kv_len[s] + key) * qk_dim()];
  }
  const float* v_row(int32_t s, int32_t h, int32_t key) const {
    return o.latent ? k_row(s, h, key) : &v_[s][(int64_t{h} * kv_len[s] + key) * v_dim()];
  }

  static double dot(const float* a, const float* b, int32_t n) {
    double sums[8] = {};
    for (int32_t d = 0; d < n; d += 8)
      for (int32_t e = 0; e < 8; ++e) sums[e] += double{a[d + e]} * b[d + e];
    double sum = 0;
    for (double x : sums) sum += x;
    return sum;
  }

  int64_t position(int32_t s, int32_t i) const {
    const int64_t prefix = kv_len[s] - o.seqs[s].q_len;
    return o.tree ? prefix + std::popcount(tree[q_indptr[s] + i]) - 1 : prefix + i;
  }
  bool visible(int32_t s, int32_t i, int32_t key) const {
    const int64_t prefix = kv_len[s] - o.seqs[s].q_len;
    const bool in_tree = o.tree && key >= prefix;
    const int64_t key_at = in_tree ? position(s, static_cast<int32_t>(key - prefix)) : key;
    if (o.window > 0 && position(s, i) - key_at >= o.window) return false;
    if (!o.causal) return true;
    if (in_tree) return (tree[q_indptr[s] + i] >> (key - prefix)) & 1;
    return key_at <= position(s, i);
  }

  std::mt19937_64 random_;
  std::vector<std::vector<float>> k_, v_;  // by sequence, [kv_heads, kv_len, dim]
};

}  // namespace attune::attention::testing
