#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "tensor/half.h"

namespace attune::attention::test {

using tensor::DType;

namespace {

constexpr float kLarge = 3e4f;  // in every type of 16 bits

// The magnitudes that a format has, by their codes: they rise, and NaN is last.
std::vector<float> magnitudes(float (*widen)(uint8_t)) {
  std::vector<float> all;
  for (int code = 0; code < 128 && !std::isnan(widen(static_cast<uint8_t>(code))); ++code)
    all.push_back(widen(static_cast<uint8_t>(code)));
  return all;
}

// Infinity becomes the largest, or infinity where there is one. Of two as near: that nearer to 0.
uint8_t nearest_fp8(float value, const std::vector<float>& all) {
  if (std::isnan(value)) return 0x7f;
  const float x = std::abs(value);
  auto above = std::lower_bound(all.begin(), all.end(), x);
  if (above == all.end() || (above != all.begin() && *above != x && x - above[-1] <= *above - x))
    --above;
  return static_cast<uint8_t>((above - all.begin()) | (value < 0 ? 0x80 : 0));
}

uint8_t nearest_e4m3(float value) {
  static const std::vector<float> all = magnitudes(tensor::f8e4m3_to_f32);
  return nearest_fp8(value, all);
}
uint8_t nearest_e5m2(float value) {
  static const std::vector<float> all = magnitudes(tensor::f8e5m2_to_f32);
  return nearest_fp8(value, all);
}

}  // namespace

float rounded(float value, DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
      return tensor::f8e4m3_to_f32(nearest_e4m3(value));
    case DType::kF8E5M2:
      return tensor::f8e5m2_to_f32(nearest_e5m2(value));
    case DType::kBF16:
      return tensor::bf16_to_f32(tensor::f32_to_bf16(value));
    case DType::kF16:
      return tensor::f16_to_f32(tensor::f32_to_f16(value));
    default:
      return value;
  }
}

Shape absorbed(int32_t heads, int32_t latent, int32_t rope) {
  return {.q_heads = heads,
          .kv_heads = 1,
          .qk_dim = latent + rope,
          .v_dim = latent,
          .path = Path::kAbsorbed,
          .v_in_k = true};
}

Shape ragged(int32_t heads, int32_t qk_dim, int32_t v_dim, Path path) {
  return {.q_heads = heads, .kv_heads = heads, .qk_dim = qk_dim, .v_dim = v_dim, .path = path};
}

std::vector<float> Problem::values(uint32_t seed, int what, int64_t rows, int64_t width,
                                   int64_t first_row) {
  std::vector<float> v(rows * width);
  const uint64_t salt = (uint64_t{seed} << 40) + (uint64_t(what) << 36) + first_row * width;
  for (size_t i = 0; i < v.size(); ++i) {
    uint64_t x = (salt + i) * 0x9e3779b97f4a7c15u;  // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    const uint64_t sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
    v[i] = (float(sum) / 65536.0f - 2.0f) * 1.7320508f;  // variance 1, and nearly normal
  }
  return v;
}

Problem::Problem(const Shape& shape, std::vector<Seq> seqs, Fill fill, uint32_t page_seed)
    : shape_(shape), seqs_(std::move(seqs)) {
  for (const Seq& s : seqs_) {
    q_indptr_.push_back(q_indptr_.back() + s.q_len);
    kv_len_.push_back(s.kv_len);
  }
  if (reads_rows(shape.path)) {
    lay_rows(page_seed);
  } else {
    lay_pages(page_seed);
  }
  float poison = fill == Fill::kZero     ? 0.0f
                 : shape_.reads_past_end ? kLarge
                 : fill == Fill::kNaN    ? std::numeric_limits<float>::quiet_NaN()
                                         : std::numeric_limits<float>::infinity();
  const int64_t elem = tensor::dtype_bytes(shape_.kv_dtype, 1);
  for (size_t at = 0; at < pool_.size(); at += elem) {
    write(pool_.data() + at, poison);
    if (shape_.reads_past_end) poison = -poison;
  }
  for (size_t s = 0; s < seqs_.size(); ++s) fill_in(seqs_[s], static_cast<int32_t>(s));
}

// Some slots stay unused, slot 0 always.
void Problem::lay_pages(uint32_t page_seed) {
  for (const Seq& s : seqs_)
    page_indptr_.push_back(page_indptr_.back() +
                           (s.kv_len + shape_.page_size - 1) / shape_.page_size);
  const int32_t used = page_indptr_.back(), num_slots = used + used / 2 + 3;
  std::vector<int32_t> slots(num_slots - 1);
  std::iota(slots.begin(), slots.end(), 1);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(page_seed));
  page_slots_.assign(slots.begin(), slots.begin() + used);
  const kv::KvGeometry g{
      {shape_.kv_heads, shape_.qk_dim, shape_.v_dim, shape_.kv_dtype, shape_.v_in_k},
      1,
      shape_.page_size,
      shape_.order};
  pool_.resize(g.piece_bytes() * num_slots);
  view_ = kv::make_view(g, pool_.data(), num_slots);
}

// In any order, with rows between them that nobody owns.
void Problem::lay_rows(uint32_t page_seed) {
  std::mt19937 rng(page_seed);
  std::vector<size_t> order(seqs_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), rng);
  row_of_.resize(seqs_.size());
  auto rows = static_cast<int32_t>(rng() % 5);
  for (size_t s : order) {
    row_of_[s] = rows;
    rows += seqs_[s].kv_len + static_cast<int32_t>(rng() % 5);
  }
  ++rows;
  kv_start_ = row_of_;
  const int64_t e = tensor::dtype_bytes(shape_.kv_dtype, 1);
  const int64_t k = int64_t{rows} * shape_.kv_heads * shape_.qk_dim * e;
  pool_.resize(k + int64_t{rows} * shape_.kv_heads * shape_.v_dim * e);
  view_ = kv::make_ragged_view(pool_.data(), pool_.data() + k, shape_.kv_dtype, rows,
                               shape_.kv_heads, shape_.qk_dim, shape_.v_dim);
}

void Problem::fill_in(const Seq& seq, int32_t s) {
  for (const bool v_part : {false, true}) {
    if (v_part && shape_.v_in_k) continue;
    const int32_t dim = v_part ? shape_.v_dim : shape_.qk_dim;
    const auto rows = values(seq.seed, v_part ? 1 : 0, seq.kv_len, shape_.kv_heads * dim);
    const float* from = rows.data();
    for (int32_t p = 0; p < seq.kv_len; ++p)
      for (int32_t h = 0; h < shape_.kv_heads; ++h)
        for (int32_t d = 0; d < dim; ++d) poke(s, p, h, d, v_part, *from++);
  }
  // Query values by distance from the end would change with kv_len; by position they do not.
  const int64_t width = int64_t{shape_.q_heads} * shape_.qk_dim;
  const auto q = values(seq.seed, 2, seq.q_len, width, std::max(0, seq.kv_len - seq.q_len));
  q_.insert(q_.end(), q.begin(), q.end());
}

char* Problem::element(int32_t seq, int32_t position, int32_t kv_head, int32_t d, bool v_part) {
  int64_t at = 0, offset = 0;
  if (reads_rows(shape_.path)) {
    offset = row_of_[seq] + position;
  } else {
    const int32_t page = position / shape_.page_size;
    offset = position % shape_.page_size;
    at = page_slots_[page_indptr_[seq] + page] * view_.page_stride;
  }
  at += v_part ? view_.v_offset + kv_head * view_.v_head_stride + offset * view_.v_token_stride
               : kv_head * view_.k_head_stride + offset * view_.k_token_stride;
  return pool_.data() + at + d * tensor::dtype_bytes(shape_.kv_dtype, 1);
}

void Problem::write(char* at, float value) {
  uint16_t half = 0;
  switch (shape_.kv_dtype) {
    case DType::kF32:
      std::memcpy(at, &value, 4);
      return;
    case DType::kF8E4M3:
      *at = static_cast<char>(nearest_e4m3(value));
      return;
    case DType::kF8E5M2:
      *at = static_cast<char>(nearest_e5m2(value));
      return;
    case DType::kBF16:
      half = tensor::f32_to_bf16(value);
      break;
    default:
      half = tensor::f32_to_f16(value);
  }
  std::memcpy(at, &half, 2);
}

void Problem::poke(int32_t seq, int32_t position, int32_t kv_head, int32_t d, bool v_part,
                   float value) {
  write(element(seq, position, kv_head, d, v_part), value);
}

void Problem::set_keys(const std::vector<std::pair<int32_t, int32_t>>& ranges, bool causal) {
  for (size_t s = 0; s < seqs_.size(); ++s) {
    kv_start_[s] = row_of_[s] + ranges[s].first;
    kv_len_[s] = ranges[s].second - ranges[s].first;
  }
  shape_.causal = causal;
}

Batch Problem::batch(Phase phase) const {
  Batch b;
  b.phase = phase;
  b.path = shape_.path;
  b.num_seqs = static_cast<int32_t>(seqs_.size());
  b.num_tokens = q_indptr_.back();
  for (const Seq& s : seqs_) {
    b.max_q_len = std::max(b.max_q_len, s.q_len);
    b.max_kv_len = std::max(b.max_kv_len, s.kv_len);
  }
  b.q_indptr = q_indptr_.data();
  b.kv_len = kv_len_.data();
  if (reads_rows(shape_.path)) {
    b.kv_start = kv_start_.data();
  } else {
    b.page_indptr = page_indptr_.data();
    b.page_slots = page_slots_.data();
    b.page_size = shape_.page_size;
  }
  b.causal = shape_.causal;
  b.deterministic = deterministic_;
  b.tree_mask = tree_.empty() ? nullptr : tree_.data();
  return b;
}

Limits Problem::limits(int threads) const {
  const Batch b = batch(Phase::kPrefill);
  return {.max_seqs = b.num_seqs,
          .max_tokens = b.num_tokens,
          .max_kv_len = b.max_kv_len,
          .q_heads = shape_.q_heads,
          .kv_heads = shape_.kv_heads,
          .qk_dim = shape_.qk_dim,
          .v_dim = shape_.v_dim,
          .page_size = view_.page_size,
          .num_slots = view_.num_slots,
          .threads = threads};
}

LayerParams Problem::layer() const {
  LayerParams p;
  p.q_heads = shape_.q_heads;
  p.kv_heads = shape_.kv_heads;
  p.scale = 1.0f / std::sqrt(float(shape_.qk_dim));
  return p;
}

std::vector<uint64_t> tree_words(const std::vector<int>& parents) {
  std::vector<uint64_t> w(parents.size());
  for (size_t i = 0; i < parents.size(); ++i)
    w[i] = (uint64_t{1} << i) | (parents[i] < 0 ? 0 : w[parents[i]]);
  return w;
}

}  // namespace attune::attention::test
