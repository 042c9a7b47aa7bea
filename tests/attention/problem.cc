#include "problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "tensor/half.h"

namespace attune::attention::test {

using tensor::DType;

std::vector<float> Problem::values(uint32_t seed, int what, int64_t rows, int64_t width) {
  std::mt19937 rng(seed * 7919 + what);
  std::normal_distribution<float> normal;
  std::vector<float> v(rows * width);
  for (float& x : v) x = normal(rng);
  return v;
}

Problem::Problem(const Shape& shape, std::vector<Seq> seqs, Fill fill, uint32_t page_seed)
    : shape_(shape), seqs_(std::move(seqs)) {
  for (const Seq& s : seqs_) {
    q_indptr_.push_back(q_indptr_.back() + s.q_len);
    kv_len_.push_back(s.kv_len);
    page_indptr_.push_back(page_indptr_.back() +
                           (s.kv_len + shape.page_size - 1) / shape.page_size);
  }
  const int32_t used = page_indptr_.back();
  num_slots_ = used + used / 2 + 3;  // some stay unused, slot 0 always
  std::vector<int32_t> slots(num_slots_ - 1);
  std::iota(slots.begin(), slots.end(), 1);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(page_seed));
  page_slots_.assign(slots.begin(), slots.begin() + used);

  const kv::KvGeometry g{
      {shape.kv_heads, shape.qk_dim, shape.v_dim, shape.kv_dtype}, 1, shape.page_size, shape.order};
  pool_.resize(g.piece_bytes() * num_slots_);
  view_ = kv::make_view(g, pool_.data(), num_slots_);
  const float poison = fill == Fill::kZero  ? 0.0f
                       : fill == Fill::kNaN ? std::numeric_limits<float>::quiet_NaN()
                                            : std::numeric_limits<float>::infinity();
  for (size_t at = 0; at < pool_.size(); at += g.elem_bytes()) write(pool_.data() + at, poison);
  for (int32_t s = 0; s < static_cast<int32_t>(seqs_.size()); ++s) {
    const Seq& seq = seqs_[s];
    const auto k = values(seq.seed, 0, seq.kv_len, shape.kv_heads * shape.qk_dim);
    const auto v = values(seq.seed, 1, seq.kv_len, shape.kv_heads * shape.v_dim);
    for (int32_t p = 0; p < seq.kv_len; ++p) {
      for (int32_t h = 0; h < shape.kv_heads; ++h) {
        for (int32_t d = 0; d < shape.qk_dim; ++d)
          poke(s, p, h, d, false, k[(p * shape.kv_heads + h) * shape.qk_dim + d]);
        for (int32_t d = 0; d < shape.v_dim; ++d)
          poke(s, p, h, d, true, v[(p * shape.kv_heads + h) * shape.v_dim + d]);
      }
    }
    // Query values by distance from the end would change with kv_len; by position they do not.
    const int64_t width = shape.q_heads * shape.qk_dim, rows = std::max(seq.q_len, seq.kv_len);
    const auto q = values(seq.seed, 2, rows, width);
    q_.insert(q_.end(), q.end() - seq.q_len * width, q.end());
  }
}

char* Problem::element(int32_t seq, int32_t position, int32_t kv_head, int32_t d, bool v_part) {
  const int32_t page = position / shape_.page_size, offset = position % shape_.page_size;
  const int64_t slot = page_slots_[page_indptr_[seq] + page];
  int64_t at = slot * view_.page_stride;
  at += v_part ? view_.v_offset + kv_head * view_.v_head_stride + offset * view_.v_token_stride
               : kv_head * view_.k_head_stride + offset * view_.k_token_stride;
  return pool_.data() + at + d * tensor::dtype_bytes(shape_.kv_dtype, 1);
}

void Problem::write(char* at, float value) {
  uint16_t half;
  switch (shape_.kv_dtype) {
    case DType::kF32:
      std::memcpy(at, &value, 4);
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

Batch Problem::batch(Phase phase) const {
  Batch b;
  b.phase = phase;
  b.num_seqs = static_cast<int32_t>(seqs_.size());
  b.num_tokens = q_indptr_.back();
  for (const Seq& s : seqs_) {
    b.max_q_len = std::max(b.max_q_len, s.q_len);
    b.max_kv_len = std::max(b.max_kv_len, s.kv_len);
  }
  b.q_indptr = q_indptr_.data();
  b.kv_len = kv_len_.data();
  b.page_indptr = page_indptr_.data();
  b.page_slots = page_slots_.data();
  b.page_size = shape_.page_size;
  b.causal = shape_.causal;
  b.deterministic = true;
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
          .page_size = shape_.page_size,
          .num_slots = num_slots_,
          .threads = threads};
}

LayerParams Problem::layer() const {
  LayerParams p;
  p.q_heads = shape_.q_heads;
  p.kv_heads = shape_.kv_heads;
  p.scale = 1.0f / std::sqrt(float(shape_.qk_dim));
  return p;
}

Runner::Runner(const std::string& backend, const std::string& isa, int threads)
    : threads_(threads) {
  auto device = device::create_cpu_device(threads, isa);
  ATTUNE_CHECK(device.ok());
  device_ = std::move(*device);
  stream_ = device_->create_stream();
  const BackendEntry* entry = find_backend(backend);
  ATTUNE_CHECK(entry && entry->create);
  backend_ = entry->create(*device_);
}

Status Runner::plan_only(const Problem& problem, Phase phase) const {
  const Limits limits = problem.limits(threads_);
  std::vector<char> workspace(backend_->workspace_bytes(limits));
  const auto plan = backend_->make_plan(limits, workspace.data());
  return backend_->plan(problem.batch(phase), *plan);
}

Output Runner::run(const Problem& problem, Phase phase, const LayerParams& layer,
                   DType out_dtype) const {
  const Limits limits = problem.limits(threads_);
  auto workspace = device_->allocate(backend_->workspace_bytes(limits), "a test");
  ATTUNE_CHECK(workspace.ok());
  std::memset(workspace->data(), 0xff, std::min<int64_t>(workspace->bytes(), 4 << 20));
  const auto plan = backend_->make_plan(limits, workspace->data());
  const Batch batch = problem.batch(phase);
  const Status planned = backend_->plan(batch, *plan);
  EXPECT_TRUE(planned.ok()) << planned.to_string();

  const Shape& shape = problem.shape();
  const int64_t row = shape.q_heads * shape.v_dim, stride = row + 5, tokens = problem.tokens();
  const int64_t bytes = tensor::dtype_bytes(out_dtype, 1);
  constexpr char kGuard = 0x5b;
  std::vector<char> out((tokens + 2) * stride * bytes, kGuard);  // a row of guards at both ends
  Output result;
  result.lse.assign(tokens * shape.q_heads + 2, 12345.0f);
  Io io;
  io.q = problem.q().data();
  io.q_stride = shape.q_heads * shape.qk_dim;
  io.out = out.data() + stride * bytes;
  io.out_dtype = out_dtype;
  io.out_stride = stride;
  io.lse = result.lse.data() + 1;
  stream_->launch([&] {
    backend_->plan_on(*plan, *stream_);
    backend_->run(*plan, layer, problem.view(), io, *stream_);
  });
  stream_->synchronize();

  const auto guarded = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * bytes; i < end * bytes; ++i)
      if (out[i] != kGuard) return false;
    return true;
  };
  EXPECT_TRUE(guarded(0, stride) && guarded((tokens + 1) * stride, (tokens + 2) * stride));
  EXPECT_EQ(result.lse.front(), 12345.0f);
  EXPECT_EQ(result.lse.back(), 12345.0f);
  for (int64_t t = 1; t <= tokens; ++t) {
    EXPECT_TRUE(guarded(t * stride + row, (t + 1) * stride)) << "after row " << t - 1;
    for (int64_t i = 0; i < row; ++i) {
      const char* at = out.data() + (t * stride + i) * bytes;
      float value;
      uint16_t half;
      std::memcpy(&value, at, out_dtype == DType::kF32 ? 4 : 2);
      std::memcpy(&half, at, 2);
      if (out_dtype == DType::kBF16) value = tensor::bf16_to_f32(half);
      if (out_dtype == DType::kF16) value = tensor::f16_to_f32(half);
      result.out.push_back(value);
    }
  }
  result.lse.erase(result.lse.begin());
  result.lse.pop_back();
  return result;
}

std::vector<std::string> isa_levels() {
  std::vector<std::string> levels;
  for (int i = 0; i <= static_cast<int>(device::detect_cpu_isa()); ++i)
    levels.push_back(device::cpu_isa_name(static_cast<device::CpuIsa>(i)));
  return levels;
}

namespace {

void close(const std::vector<float>& got, const std::vector<float>& want, double atol, double rtol,
           const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    ASSERT_LE(std::abs(double(got[i]) - want[i]), atol + rtol * std::abs(want[i]))
        << what << " at " << i << ": got " << got[i] << ", want " << want[i];
  }
}

void same(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::memcmp(&got[i], &want[i], 4), 0)
        << what << " at " << i << ": got " << got[i] << ", want " << want[i];
}

}  // namespace

void expect_close(const Output& got, const Output& want, double atol, double rtol,
                  const std::string& what) {
  close(got.out, want.out, atol, rtol, what + ": out");
  close(got.lse, want.lse, atol, rtol, what + ": lse");
}

void expect_same_bits(const Output& got, const Output& want, const std::string& what) {
  same(got.out, want.out, what + ": out");
  same(got.lse, want.lse, what + ": lse");
}

}  // namespace attune::attention::test
