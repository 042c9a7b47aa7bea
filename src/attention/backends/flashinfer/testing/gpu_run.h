// Runs a backend on problems (gpu_problem.h) and compares. Device arrays stay where they are from
// problem to problem, as a captured graph needs.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "attention/backends/flashinfer/testing/gpu_problem.h"
#include "attention/registry.h"

namespace attune::attention::testing {

class GpuRun {
 public:
  // Guard elements around the output and the LSE.
  static constexpr int64_t kGuard = 64;

  GpuRun(device::Device& device, const Backend& backend, const Limits& limits)
      : device_(device), backend_(backend), limits_(limits), stream_(device.create_stream()) {
    workspace_ = device_.allocate(backend.workspace_bytes(limits), "workspace").value();
    stream_->fill(workspace_.data(), 0xff, workspace_.bytes());
    plan_ = backend.make_plan(limits, workspace_.data());
  }

  device::Stream& stream() { return *stream_; }

  Status plan(const Problem& p) {
    problem_ = &p;
    batch_ = p.batch();
    batch_.on_device = {
        .q_indptr = upload("q_indptr", p.q_indptr.data(), p.q_indptr.size()),
        .kv_len = upload("kv_len", p.kv_len.data(), p.kv_len.size()),
        .page_indptr = upload("page_indptr", p.page_indptr.data(), p.page_indptr.size()),
        .page_slots = upload("page_slots", p.page_slots.data(), p.page_slots.size()),
        .tree_mask = upload("tree", p.tree.data(), p.tree.size())};
    pool_ = upload("pool", p.pool.data(), p.pool.size());
    q_ = upload("q", p.q_bits.data(), p.q_bits.size());
    out_ = room<uint16_t>("out", p.out_elems() + 2 * kGuard);
    lse_ = room<float>("lse", int64_t{p.num_tokens()} * p.o.q_heads + 2 * kGuard);
    stream_->fill(out_, 0xff, 2 * (p.out_elems() + 2 * kGuard));
    stream_->fill(lse_, 0xff, 4 * (int64_t{p.num_tokens()} * p.o.q_heads + 2 * kGuard));
    stream_->synchronize();
    const Support support = backend_.supports(batch_);
    if (!support.ok()) return unsupported(support.reasons[0]);
    ATTUNE_RETURN_IF_ERROR(backend_.plan(batch_, *plan_, *stream_));
    backend_.plan_on(*plan_, *stream_);
    return {};
  }

  // The layer's launch alone, as a graph has it.
  void launch(bool with_lse) {
    const Problem& p = *problem_;
    kv::PagedKvView view = p.view(pool_);
    view.num_slots = limits_.num_slots;
    stream_->launch([&] {
      backend_.run(*plan_, p.layer(), view,
                   {.q = q_,
                    .q_dtype = DType::kBF16,
                    .q_stride = p.q_stride(),
                    .out = out_ + kGuard,
                    .out_dtype = DType::kBF16,
                    .out_stride = p.out_stride(),
                    .lse = with_lse ? lse_ + kGuard : nullptr},
                   *stream_);
    });
  }

  // The largest relative error of a row (L2) and error of an LSE, over rows and heads spread over
  // the problem; fails where a guard, a row or an LSE is wrong.
  void expect_right(const std::string& what, bool with_lse, double tolerance = 8e-3,
                    int max_pairs = 160) {
    const Problem& p = *problem_;
    const std::vector<uint16_t> out = download(out_, p.out_elems() + 2 * kGuard);
    const std::vector<float> lse =
        download(lse_, int64_t{p.num_tokens()} * p.o.q_heads + 2 * kGuard);
    ASSERT_TRUE(stream_->status().ok()) << what << ": " << stream_->status().to_string();
    int64_t broken = 0, nans = 0;
    for (int64_t i = 0; i < kGuard; ++i)
      broken += out[i] != 0xffff || out[out.size() - 1 - i] != 0xffff || !std::isnan(lse[i]) ||
                !std::isnan(lse[lse.size() - 1 - i]);
    const int64_t width = int64_t{p.o.q_heads} * p.v_dim();
    for (int64_t i = 0; i < p.out_elems(); ++i) {
      if (i % p.out_stride() >= width) {
        broken += out[kGuard + i] != 0xffff;
      } else {
        nans += std::isnan(tensor::bf16_to_f32(out[kGuard + i]));
      }
    }
    EXPECT_EQ(broken, 0) << what << ": guard elements";
    EXPECT_EQ(nans, 0) << what << ": NaN in " << p.out_elems() << " outputs";
    const int64_t pairs = int64_t{p.num_tokens()} * p.o.q_heads;
    int64_t step = std::max<int64_t>(pairs / max_pairs, 1);
    if (step > 1) step |= 1;  // so that all heads come
    double worst = 0, worst_lse = 0;
    int64_t wrong = 0;
    std::string first;
    std::vector<double> want;
    for (int64_t pair = pairs - 1; pair >= 0; pair -= step) {
      const auto token = static_cast<int32_t>(pair / p.o.q_heads);
      const auto head = static_cast<int32_t>(pair % p.o.q_heads);
      int32_t s = 0;
      while (p.q_indptr[s + 1] <= token) ++s;
      const double want_lse = p.expected(s, token - p.q_indptr[s], head, &want);
      double error = 0, size = 0;
      for (int32_t d = 0; d < p.v_dim(); ++d) {
        const double got =
            tensor::bf16_to_f32(out[kGuard + token * p.out_stride() + head * p.v_dim() + d]);
        error += (got - want[d]) * (got - want[d]);
        size += want[d] * want[d];
      }
      error = std::sqrt(error / std::max(size, 1e-30));
      double lse_error = 0;
      if (with_lse) {
        const double got = lse[kGuard + pair];
        lse_error = got == want_lse ? 0 : std::abs(got - want_lse);
      }
      worst = std::max(worst, error);
      worst_lse = std::max(worst_lse, lse_error);
      if (!(error < tolerance) || !(lse_error < 4e-3)) {
        if (wrong++ == 0)
          first = "sequence " + std::to_string(s) + " (" + std::to_string(p.o.seqs[s].q_len) +
                  " on " + std::to_string(p.kv_len[s]) + ") query " +
                  std::to_string(token - p.q_indptr[s]) + " head " + std::to_string(head) +
                  ": error " + std::to_string(error) + ", LSE off by " + std::to_string(lse_error);
      }
    }
    EXPECT_EQ(wrong, 0) << what << ", first: " << first;
    std::printf("    %-58s error %.4f  LSE %.5f%s\n", what.c_str(), worst, worst_lse,
                wrong ? "  WRONG" : "");
  }

  // What the last launch wrote.
  std::vector<uint16_t> result() { return download(out_ + kGuard, problem_->out_elems()); }

  template <typename T>
  T* upload(const std::string& name, const T* from, int64_t n) {
    T* to = room<T>(name, n);
    constexpr int64_t kPiece = int64_t{64} << 20;
    if (!staging_.data()) staging_ = device_.allocate_pinned(kPiece, "staging").value();
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const int64_t now = std::min(kPiece, bytes - at);
      std::memcpy(staging_.data(), reinterpret_cast<const char*>(from) + at, now);
      stream_->copy(reinterpret_cast<char*>(to) + at, staging_.data(), now);
      stream_->synchronize();
    }
    return to;
  }

 private:
  template <typename T>
  std::vector<T> download(const T* from, int64_t n) {
    device::Buffer pinned = device_.allocate_pinned(n * sizeof(T), "results").value();
    stream_->copy(pinned.data(), from, n * sizeof(T));
    stream_->synchronize();
    return std::vector<T>(pinned.as<T>(), pinned.as<T>() + n);
  }

  // Device memory of that name; it stays where it is unless it has to grow.
  template <typename T>
  T* room(const std::string& name, int64_t n) {
    device::Buffer& buffer = buffers_[name];
    const int64_t bytes = std::max<int64_t>(n * static_cast<int64_t>(sizeof(T)), 1);
    if (buffer.bytes() < bytes) buffer = device_.allocate(bytes * 5 / 4, name).value();
    return buffer.as<T>();
  }

  device::Device& device_;
  const Backend& backend_;
  Limits limits_;
  std::unique_ptr<device::Stream> stream_;
  device::Buffer workspace_, staging_;
  std::map<std::string, device::Buffer> buffers_;
  std::unique_ptr<Plan> plan_;
  const Problem* problem_ = nullptr;
  Batch batch_;
  char* pool_ = nullptr;
  uint16_t *q_ = nullptr, *out_ = nullptr;
  float* lse_ = nullptr;
};

// The GPU, or a skip.
class GpuBackendTest : public ::testing::Test {
 protected:
  void use(const char* name) {
    auto made = device::create_cuda_device(0);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    device_ = std::move(*made);
    const BackendEntry* entry = find_backend(name);
    if (!entry->create) GTEST_SKIP() << entry->unavailable;
    backend_ = entry->create(*device_);
  }

  static Limits limits_of(const ProblemOptions& o) {
    return {.max_seqs = 256,
            .max_tokens = 8192,
            .max_kv_len = 40000,
            .q_heads = o.q_heads,
            .kv_heads = o.kv_heads,
            .qk_dim = o.latent ? 576 : o.head_dim,
            .v_dim = o.latent ? 512 : o.head_dim,
            .page_size = o.page_size,
            .num_slots = 1};
  }

  // Plans, runs and compares; again on the same plan for each further problem.
  void check(const std::string& what, std::vector<ProblemOptions> steps, double tolerance = 8e-3) {
    std::vector<Problem> problems;
    Limits limits = limits_of(steps[0]);
    for (ProblemOptions& o : steps) problems.emplace_back(std::move(o));
    for (const Problem& p : problems) limits.num_slots = std::max(limits.num_slots, p.num_slots);
    GpuRun run(*device_, *backend_, limits);
    for (size_t i = 0; i < problems.size(); ++i) {
      const Status planned = run.plan(problems[i]);
      ASSERT_TRUE(planned.ok()) << what << ": " << planned.to_string();
      const bool with_lse = i % 2 == 0;
      run.launch(with_lse);
      run.expect_right(what + (i ? ", again" : ""), with_lse, tolerance);
    }
  }

  // A graph of the first problem's launch serves all of them, whose arrays and pools must find room
  // where its were.
  void check_graph(const std::string& what, const std::vector<Problem>& steps) {
    Limits limits = limits_of(steps[0].o);
    for (const Problem& p : steps) limits.num_slots = std::max(limits.num_slots, p.num_slots);
    GpuRun run(*device_, *backend_, limits);
    ASSERT_TRUE(run.plan(steps[0]).ok()) << what;
    auto graph = run.stream().capture("a test", [&] { run.launch(true); });
    ASSERT_TRUE(graph.ok()) << what << ": " << graph.status().to_string();
    for (size_t i = 0; i < steps.size(); ++i) {
      const Status planned = run.plan(steps[i]);
      ASSERT_TRUE(planned.ok()) << what << ": " << planned.to_string();
      (*graph)->launch(run.stream());
      run.expect_right(what + ", graph, step " + std::to_string(i), true);
    }
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace attune::attention::testing
