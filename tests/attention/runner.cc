#include "runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/registry.h"
#include "base/check.h"
#include "tensor/half.h"

namespace attune::attention::test {

using tensor::DType;

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
  return backend_->plan(problem.batch(phase), *plan, *stream_);
}

Output Runner::run(const Problem& problem, Phase phase, const LayerParams& layer, DType out_dtype,
                   const Tuning& tuning) const {
  Limits limits = problem.limits(threads_);
  limits.tuning = tuning;
  auto workspace = device_->allocate(backend_->workspace_bytes(limits), "a test");
  ATTUNE_CHECK(workspace.ok());
  if (workspace->bytes() > 0)
    std::memset(workspace->data(), 0xff, std::min<int64_t>(workspace->bytes(), 4 << 20));
  const auto plan = backend_->make_plan(limits, workspace->data());
  return run_with(*plan, problem, phase, layer, out_dtype);
}

namespace {

constexpr char kGuard = 0x5b;

// Rows of floats of some type with `gap` guard elements after each and a guard row at both ends.
class GuardedRows {
 public:
  GuardedRows(int64_t rows, int64_t width, DType dtype)
      : rows_(rows), width_(width), dtype_(dtype), bytes_((rows + 2) * stride() * elem(), kGuard) {}
  int64_t stride() const { return width_ + 5; }
  void* data() { return bytes_.data() + stride() * elem(); }

  std::vector<float> take() const {
    EXPECT_TRUE(untouched(0, stride()));
    EXPECT_TRUE(untouched((rows_ + 1) * stride(), (rows_ + 2) * stride()));
    std::vector<float> values;
    for (int64_t r = 1; r <= rows_; ++r) {
      EXPECT_TRUE(untouched(r * stride() + width_, (r + 1) * stride())) << "after row " << r - 1;
      for (int64_t i = 0; i < width_; ++i) values.push_back(read(r * stride() + i));
    }
    return values;
  }

 private:
  int64_t elem() const { return tensor::dtype_bytes(dtype_, 1); }
  bool untouched(int64_t begin, int64_t end) const {
    return std::all_of(bytes_.begin() + begin * elem(), bytes_.begin() + end * elem(),
                       [](char c) { return c == kGuard; });
  }
  float read(int64_t i) const {
    float value;
    uint16_t half;
    std::memcpy(&half, bytes_.data() + i * elem(), 2);
    if (dtype_ == DType::kBF16) return tensor::bf16_to_f32(half);
    if (dtype_ == DType::kF16) return tensor::f16_to_f32(half);
    std::memcpy(&value, bytes_.data() + i * elem(), 4);
    return value;
  }

  const int64_t rows_, width_;
  const DType dtype_;
  std::vector<char> bytes_;
};

std::vector<uint16_t> narrow(const std::vector<float>& values, DType dtype) {
  std::vector<uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(),
                 dtype == DType::kBF16 ? tensor::f32_to_bf16 : tensor::f32_to_f16);
  return halves;
}

}  // namespace

Output Runner::run_with(Plan& plan, const Problem& problem, Phase phase, const LayerParams& layer,
                        DType out_dtype) const {
  const Batch batch = problem.batch(phase);
  const Status planned = backend_->plan(batch, plan, *stream_);
  EXPECT_TRUE(planned.ok()) << planned.to_string();
  return execute(plan, problem, layer, out_dtype);
}

std::unique_ptr<Plan> Runner::make_plan(const Problem& problem, const Tuning& tuning) {
  Limits limits = problem.limits(threads_);
  limits.tuning = tuning;
  auto workspace = device_->allocate(backend_->workspace_bytes(limits), "a test");
  ATTUNE_CHECK(workspace.ok());
  workspaces_.push_back(std::move(*workspace));
  return backend_->make_plan(limits, workspaces_.back().data());
}

Output Runner::execute(Plan& plan, const Problem& problem, const LayerParams& layer,
                       DType out_dtype) const {
  const Shape& shape = problem.shape();
  GuardedRows out(problem.tokens(), int64_t{shape.q_heads} * shape.v_dim, out_dtype);
  Output result;
  result.lse.assign(problem.tokens() * shape.q_heads + 2, 12345.0f);
  std::vector<uint16_t> half_q;
  Io io;
  io.q = problem.q().data();
  io.q_dtype = shape.q_dtype;
  if (shape.q_dtype != DType::kF32) {
    half_q = narrow(problem.q(), shape.q_dtype);
    io.q = half_q.data();
  }
  io.q_stride = int64_t{shape.q_heads} * shape.qk_dim;
  io.out = out.data();
  io.out_dtype = out_dtype;
  io.out_stride = out.stride();
  const bool lse = backend_->capabilities().lse_out;
  io.lse = lse ? result.lse.data() + 1 : nullptr;
  const std::vector<char> pool = problem.pool();
  stream_->launch([&] {
    backend_->plan_on(plan, *stream_);
    backend_->run(plan, layer, problem.view(), io, *stream_);
  });
  stream_->synchronize();

  EXPECT_TRUE(pool == problem.pool()) << "the pool was written to";
  EXPECT_EQ(result.lse.front(), 12345.0f);
  EXPECT_EQ(result.lse.back(), 12345.0f);
  result.out = out.take();
  result.lse.erase(result.lse.begin());
  result.lse.pop_back();
  if (!lse) result.lse.clear();
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
  if (!got.lse.empty() && !want.lse.empty()) close(got.lse, want.lse, atol, rtol, what + ": lse");
}

void expect_same_bits(const Output& got, const Output& want, const std::string& what) {
  same(got.out, want.out, what + ": out");
  same(got.lse, want.lse, what + ": lse");
}

}  // namespace attune::attention::test
