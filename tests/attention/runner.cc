#include "runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "attention/registry.h"
#include "base/check.h"
#include "ops/ops.h"
#include "tensor/half.h"

namespace attune::attention::test {

using tensor::DType;

void* DeviceMemory::copy(const void* host, int64_t bytes) {
  if (stream_.kind() == device::Kind::kCpu) return const_cast<void*>(host);
  auto buffer = device_.allocate(bytes, "a test");
  ATTUNE_CHECK(buffer.ok());
  buffers_.push_back(std::move(*buffer));
  void* to = buffers_.back().data();
  if (bytes > 0) stream_.copy(to, host, bytes);
  stream_.synchronize();
  return to;
}

void DeviceMemory::copy_back(void* host, const void* from, int64_t bytes) {
  if (stream_.kind() == device::Kind::kCpu || bytes == 0) return;
  stream_.copy(host, from, bytes);
  stream_.synchronize();
}

Batch DeviceMemory::with_arrays(const Batch& host) {
  if (stream_.kind() == device::Kind::kCpu) return host;
  Batch b = host;
  const bool rows = reads_rows(b.path);
  b.on_device.q_indptr = copy_of(b.q_indptr, b.num_seqs + 1);
  b.on_device.kv_len = copy_of(b.kv_len, b.num_seqs);
  if (rows) {
    b.on_device.kv_start = copy_of(b.kv_start, b.num_seqs);
  } else {
    b.on_device.page_indptr = copy_of(b.page_indptr, b.num_seqs + 1);
    // One more, so that there is something to point at where no sequence has a page.
    std::vector<int32_t> slots(b.page_slots, b.page_slots + b.page_indptr[b.num_seqs]);
    slots.push_back(-1);
    b.on_device.page_slots = static_cast<const int32_t*>(copy(slots.data(), std::ssize(slots) * 4));
  }
  if (b.tree_mask) b.on_device.tree_mask = copy_of(b.tree_mask, b.num_tokens);
  return b;
}

const std::string& gpu_missing() {
  static const std::string why = [] {
    const auto device = device::create_cuda_device(0);
    return device.ok() ? std::string() : device.status().message();
  }();
  return why;
}

Runner::Runner(const std::string& backend, const std::string& isa, int threads)
    : threads_(threads) {
  auto device =
      isa == kCuda ? device::create_cuda_device(0) : device::create_cpu_device(threads, isa);
  ATTUNE_CHECK(device.ok());
  device_ = std::move(*device);
  stream_ = device_->create_stream();
  const BackendEntry* entry = find_backend(backend);
  ATTUNE_CHECK(entry && entry->create);
  backend_ = entry->create(*device_);
}

namespace {

// A batch's host arrays, to be spoilt.
struct HostArrays {
  explicit HostArrays(const Batch& b) : batch(b) {
    take(batch.q_indptr, b.num_seqs + 1);
    take(batch.kv_len, b.num_seqs);
    take(batch.page_indptr, b.num_seqs + 1);
    take(batch.page_slots, b.page_indptr ? b.page_indptr[b.num_seqs] : 0);
    take(batch.kv_start, b.num_seqs);
    if (b.tree_mask) {
      tree.assign(b.tree_mask, b.tree_mask + b.num_tokens);
      batch.tree_mask = tree.data();
    }
  }
  void take(const int32_t*& array, int64_t count) {
    if (!array) return;
    arrays.push_back(std::make_unique<std::vector<int32_t>>(array, array + count));
    array = arrays.back()->data();
  }
  void spoil() {
    for (const auto& array : arrays) std::fill(array->begin(), array->end(), -1);
    std::fill(tree.begin(), tree.end(), 0);
  }
  Batch batch;
  std::vector<std::unique_ptr<std::vector<int32_t>>> arrays;
  std::vector<uint64_t> tree;
};

}  // namespace

Status Runner::plan_batch(Plan& plan, const Problem& problem, Phase phase) const {
  if (!on_gpu()) return backend_->plan(problem.batch(phase), plan, *stream_);
  auto arrays = std::make_unique<DeviceMemory>(*device_, *stream_);
  HostArrays host(problem.batch(phase));
  const Status status = backend_->plan(arrays->with_arrays(host.batch), plan, *stream_);
  host.spoil();
  arrays_[&plan] = std::move(arrays);
  return status;
}

device::Buffer Runner::workspace(const Limits& limits) const {
  auto buffer = device_->allocate(backend_->workspace_bytes(limits), "a test");
  ATTUNE_CHECK(buffer.ok());
  if (buffer->bytes() > 0) stream_->fill(buffer->data(), 0xff, buffer->bytes());
  stream_->synchronize();
  return std::move(*buffer);
}

Status Runner::plan_only(const Problem& problem, Phase phase) const {
  const Limits limits = problem.limits(threads_);
  const device::Buffer scratch = workspace(limits);
  const auto plan = backend_->make_plan(limits, scratch.data());
  const Status status = plan_batch(*plan, problem, phase);
  stream_->synchronize();
  arrays_.erase(plan.get());
  return status;
}

Output Runner::run(const Problem& problem, Phase phase, const LayerParams& layer, DType out_dtype,
                   const Tuning& tuning) const {
  Limits limits = problem.limits(threads_);
  limits.tuning = tuning;
  limits.calls = {{layer, problem.view(), io_of(problem.shape(), out_dtype)}};
  const device::Buffer scratch = workspace(limits);
  const auto plan = backend_->make_plan(limits, scratch.data());
  const Output output = run_with(*plan, problem, phase, layer, out_dtype);
  arrays_.erase(plan.get());
  return output;
}

namespace {

constexpr char kGuard = 0x5b;

// Rows of floats of some type, `gap` guard elements after each and a guard row at both ends.
class GuardedRows {
 public:
  GuardedRows(int64_t rows, int64_t width, DType dtype, int64_t gap)
      : rows_(rows),
        width_(width),
        gap_(gap),
        dtype_(dtype),
        bytes_((rows + 2) * stride() * elem(), kGuard) {}
  int64_t stride() const { return width_ + gap_; }
  void* data() { return bytes_.data() + stride() * elem(); }
  std::vector<char>& bytes() { return bytes_; }

  std::vector<float> take() const {
    EXPECT_TRUE(untouched(0, stride()));
    EXPECT_TRUE(untouched((rows_ + 1) * stride(), (rows_ + 2) * stride()));
    std::vector<float> values;
    for (int64_t r = 1; r <= rows_; ++r) {
      EXPECT_TRUE(untouched(r * stride() + width_, (r + 1) * stride())) << "after row " << r - 1;
      const auto row = widened(bytes_.data() + r * stride() * elem(), dtype_, width_);
      values.insert(values.end(), row.begin(), row.end());
    }
    return values;
  }

 private:
  int64_t elem() const { return tensor::dtype_bytes(dtype_, 1); }
  bool untouched(int64_t begin, int64_t end) const {
    return std::all_of(bytes_.begin() + begin * elem(), bytes_.begin() + end * elem(),
                       [](char c) { return c == kGuard; });
  }

  const int64_t rows_, width_, gap_;
  const DType dtype_;
  std::vector<char> bytes_;
};

}  // namespace

std::vector<char> narrowed(const std::vector<float>& values, DType dtype) {
  const int64_t elem = tensor::dtype_bytes(dtype, 1);
  std::vector<char> bytes(values.size() * elem);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half =
        dtype == DType::kBF16 ? tensor::f32_to_bf16(values[i]) : tensor::f32_to_f16(values[i]);
    const void* from = dtype == DType::kF32 ? static_cast<const void*>(&values[i]) : &half;
    std::memcpy(bytes.data() + i * elem, from, elem);
  }
  return bytes;
}

std::vector<float> widened(const char* elements, DType dtype, int64_t count) {
  std::vector<float> values(count);
  if (dtype == DType::kF32) {
    if (count > 0) std::memcpy(values.data(), elements, count * 4);
    return values;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t half;
    std::memcpy(&half, elements + 2 * i, 2);
    values[i] = dtype == DType::kBF16 ? tensor::bf16_to_f32(half) : tensor::f16_to_f32(half);
  }
  return values;
}

Output Runner::run_with(Plan& plan, const Problem& problem, Phase phase, const LayerParams& layer,
                        DType out_dtype) const {
  const Status planned = plan_batch(plan, problem, phase);
  EXPECT_TRUE(planned.ok()) << planned.to_string();
  return execute(plan, problem, layer, out_dtype);
}

std::unique_ptr<Plan> Runner::make_plan(const Problem& problem, const Tuning& tuning,
                                        std::vector<Call> calls) {
  Limits limits = problem.limits(threads_);
  limits.tuning = tuning;
  limits.calls = std::move(calls);
  workspaces_.push_back(workspace(limits));
  return backend_->make_plan(limits, workspaces_.back().data());
}

Output Runner::execute(Plan& plan, const Problem& problem, const LayerParams& layer,
                       DType out_dtype) const {
  DeviceMemory memory(*device_, *stream_);
  std::vector<char> pool = problem.pool();
  kv::PagedKvView view = problem.view();
  if (on_gpu()) view.base = memory.copy(pool.data(), std::ssize(pool));
  const Output result = execute_in(view, plan, problem, layer, out_dtype);
  memory.copy_back(pool.data(), view.base, std::ssize(pool));
  EXPECT_TRUE(pool == problem.pool()) << "the pool was written to";
  return result;
}

Output Runner::run_in(void* pool, int32_t slots, const Problem& problem, Phase phase) const {
  Limits limits = problem.limits(threads_);
  limits.num_slots = slots;
  const device::Buffer scratch = workspace(limits);
  const auto plan = backend_->make_plan(limits, scratch.data());
  const Status planned = plan_batch(*plan, problem, phase);
  EXPECT_TRUE(planned.ok()) << planned.to_string();
  kv::PagedKvView view = problem.view();
  view.base = pool;
  view.num_slots = slots;
  const Output output = execute_in(view, *plan, problem, problem.layer(), DType::kF32);
  arrays_.erase(plan.get());
  return output;
}

Io Runner::io_of(const Shape& shape, DType out_dtype) const {
  static float there;
  if (on_gpu() && out_dtype == DType::kF32) out_dtype = shape.q_dtype;
  return {.q_dtype = shape.q_dtype,
          .q_stride = int64_t{shape.q_heads} * shape.qk_dim,
          .out_dtype = out_dtype,
          .out_stride = int64_t{shape.q_heads} * shape.v_dim + gap(),
          .lse = backend_->capabilities().lse_out ? &there : nullptr};
}

Output Runner::execute_in(const kv::PagedKvView& view, Plan& plan, const Problem& problem,
                          const LayerParams& layer, DType out_dtype) const {
  const Shape& shape = problem.shape();
  Io io = io_of(shape, out_dtype);
  GuardedRows out(problem.tokens(), int64_t{shape.q_heads} * shape.v_dim, io.out_dtype, gap());
  Output result;
  result.v_dim = shape.v_dim;
  result.lse.assign(problem.tokens() * shape.q_heads + 2, 12345.0f);
  const std::vector<char> q = narrowed(problem.q(), shape.q_dtype);
  const bool lse = io.lse != nullptr;

  DeviceMemory memory(*device_, *stream_);
  io.q = memory.copy(q.data(), std::ssize(q));
  char* out_rows = memory.copy_of(out.bytes().data(), std::ssize(out.bytes()));
  io.out = out_rows + (static_cast<char*>(out.data()) - out.bytes().data());
  float* lse_rows = memory.copy_of(result.lse.data(), std::ssize(result.lse));
  io.lse = lse ? lse_rows + 1 : nullptr;
  LayerParams there = layer;
  if (layer.sinks) there.sinks = memory.copy_of(layer.sinks, layer.q_heads);

  stream_->launch([&] {
    backend_->plan_on(plan, *stream_);
    backend_->run(plan, there, view, io, *stream_);
  });
  stream_->synchronize();
  EXPECT_TRUE(stream_->status().ok()) << stream_->status().to_string();
  memory.copy_back(out.bytes().data(), out_rows, std::ssize(out.bytes()));
  memory.copy_back(result.lse.data(), lse_rows, std::ssize(result.lse) * 4);
  EXPECT_EQ(result.lse.front(), 12345.0f);
  EXPECT_EQ(result.lse.back(), 12345.0f);
  result.out = out.take();
  result.lse.erase(result.lse.begin());
  result.lse.pop_back();
  if (!lse) result.lse.clear();
  return result;
}

Output merge(const std::vector<Output>& parts, int32_t heads, int32_t v_dim) {
  static const auto device = std::move(*device::create_cpu_device(1, "auto"));
  static const auto stream = device->create_stream();
  Output all{std::vector<float>(parts[0].out.size()),
             std::vector<float>(parts[0].lse.size(), -std::numeric_limits<float>::infinity()),
             v_dim};
  for (const Output& part : parts) {
    stream->launch([&] {
      ops::cpu_ops(device->info().isa)
          .merge_state({.part = part.out.data(),
                        .part_lse = part.lse.data(),
                        .tokens = static_cast<int32_t>(part.lse.size()) / heads,
                        .heads = heads,
                        .v_dim = v_dim,
                        .out = all.out.data(),
                        .lse = all.lse.data()},
                       *stream);
    });
    stream->synchronize();
  }
  return all;
}

std::vector<std::string> isa_levels() {
  std::vector<std::string> levels;
  for (int i = 0; i <= static_cast<int>(device::detect_cpu_isa()); ++i)
    levels.push_back(device::cpu_isa_name(static_cast<device::CpuIsa>(i)));
  return levels;
}

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
// Two of bfloat16's unit roundoffs: the weights' and the output's.
constexpr double kMostOfRow = 8e-3;
// No rounding to 16 bits reaches LSEs: scores and their sums are float32.
constexpr double kMostOfLse = 4e-3;

// Each within atol + rtol * |want|, and within `most`.
void close(const std::vector<float>& got, const std::vector<float>& want, double atol, double rtol,
           double most, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    ASSERT_TRUE(std::isfinite(want[i]) && std::abs(double(got[i]) - want[i]) <=
                                              std::min(atol + rtol * std::abs(want[i]), most))
        << what << " at " << i << ": got " << got[i] << ", want " << want[i];
  }
}

// Each row of `width` within `most`, relative, by L2 norms: sees what elements far below atol hide.
void rows_close(const std::vector<float>& got, const std::vector<float>& want, int32_t width,
                double most, const std::string& what) {
  const auto size = static_cast<int64_t>(want.size());
  for (int64_t begin = 0; begin < size; begin += width) {
    double error = 0, norm = 0;
    for (int64_t i = begin; i < begin + width; ++i) {
      error += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
      norm += double(want[i]) * want[i];
    }
    ASSERT_LE(std::sqrt(error), most * std::sqrt(norm)) << what << " in row " << begin / width;
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
  ASSERT_GT(want.v_dim, 0);
  close(got.out, want.out, atol, rtol, kInf, what + ": out");
  if (::testing::Test::HasFatalFailure()) return;
  rows_close(got.out, want.out, want.v_dim, std::min(std::max(atol, rtol), kMostOfRow),
             what + ": out");
  if (!got.lse.empty() && !want.lse.empty())
    close(got.lse, want.lse, atol, rtol, kMostOfLse, what + ": lse");
}

void expect_same_bits(const Output& got, const Output& want, const std::string& what) {
  same(got.out, want.out, what + ": out");
  same(got.lse, want.lse, what + ": lse");
}

}  // namespace attune::attention::test
