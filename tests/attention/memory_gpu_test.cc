// What only a GPU's backends can do wrong with memory: captured steps whose arrays change, memory
// taken while planning, pools beyond what 32 bits count; and a few small cases for
// compute-sanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "suite.h"

namespace attune::attention::test {
namespace {

using tensor::DType;

class Gpu : public Suite {
 protected:
  // GQA and latents, as far as the backend declares them for decode.
  std::vector<Shape> shapes() {
    std::vector<Shape> all;
    for (const Shape& shape :
         {Shape{.q_heads = 8, .kv_heads = 2, .qk_dim = 64, .v_dim = 64}, absorbed(16, 512, 64)})
      if (serves(adapt(shape), Phase::kDecode)) all.push_back(adapt(shape));
    return all;
  }
  void expect_ok() {
    EXPECT_TRUE(runner_.stream().status().ok()) << runner_.stream().status().to_string();
  }
  void replay(const Shape& shape, Phase phase, int q_len);
  void far_slots(const Shape& shape);
};
using Graphs = Gpu;
using BugA14 = Gpu;
using Sanitized = Gpu;
ATTUNE_SUITE(Gpu);

// A step in memory that stays where it is, as the engine's does.
class FixedStep {
 public:
  FixedStep(Runner& runner, const Problem& p, int q_len)
      : runner_(runner),
        memory_(runner.device(), runner.stream()),
        p_(p),
        q_len_(q_len),
        limits_(p.limits(1)),
        host_(p.batch(Phase::kDecode)),
        q_indptr_(host_.q_indptr, host_.q_indptr + host_.num_seqs + 1),
        kv_len_(host_.kv_len, host_.kv_len + host_.num_seqs),
        page_slots_(host_.page_slots, host_.page_slots + host_.page_indptr[host_.num_seqs]) {
    batch_ = memory_.with_arrays(host_);
    batch_.q_indptr = q_indptr_.data();
    batch_.kv_len = kv_len_.data();
    batch_.page_slots = page_slots_.data();
    const Shape& s = p.shape();
    q_ = narrowed(p.q(), s.q_dtype);
    rows_ = int64_t{p.tokens()} * s.q_heads;
    out_.resize(rows_ * s.v_dim * tensor::dtype_bytes(s.q_dtype, 1));
    lse_.resize(rows_);
    io_.q = memory_.copy(q_.data(), std::ssize(q_));
    io_.out = memory_.copy(out_.data(), std::ssize(out_));
    io_.lse = memory_.copy_of(lse_.data(), rows_);
    io_.q_dtype = io_.out_dtype = s.q_dtype;
    io_.q_stride = int64_t{s.q_heads} * s.qk_dim;
    io_.out_stride = int64_t{s.q_heads} * s.v_dim;
    if (!runner.backend().capabilities().lse_out) io_.lse = nullptr;
    view_ = p.view();
    view_.base = memory_.copy(p.pool().data(), std::ssize(p.pool()));
  }

  // The first `lens` sequences have these lengths. The others are padding: the next one of a row
  // that sees a key on the padding slot, the rest of no rows.
  void set(Phase phase, const std::vector<int32_t>& lens) {
    sequences_ = lens.size();
    for (size_t s = 0; s < kv_len_.size(); ++s) {
      const bool real = s < lens.size();
      const int32_t padding = s == lens.size();
      kv_len_[s] = real ? lens[s] : padding;
      q_indptr_[s + 1] = q_indptr_[s] + (real ? q_len_ : padding);
      const int32_t page = host_.page_indptr[s];
      page_slots_[page] = real ? host_.page_slots[page] : kv::kPaddingSlot.value;
    }
    batch_.phase = phase;
    batch_.num_tokens = q_indptr_.back();
    put(batch_.on_device.q_indptr, q_indptr_);
    put(batch_.on_device.kv_len, kv_len_);
    put(batch_.on_device.page_slots, page_slots_);
    std::fill(out_.begin(), out_.end(), char(0x77));
    runner_.stream().copy(io_.out, out_.data(), std::ssize(out_));
  }
  // What launch() will ask for.
  std::vector<Call> calls(const LayerParams& layer) const { return {{layer, view_, io_}}; }
  Status plan(Plan& plan) { return runner_.backend().plan(batch_, plan, runner_.stream()); }
  void launch(Plan& plan, const LayerParams& layer) {
    runner_.backend().plan_on(plan, runner_.stream());
    runner_.backend().run(plan, layer, view_, io_, runner_.stream());
  }
  // Of the rows that the last set() gave sequences.
  Output result() {
    memory_.copy_back(out_.data(), io_.out, std::ssize(out_));
    if (io_.lse) memory_.copy_back(lse_.data(), io_.lse, rows_ * 4);
    const Shape& s = p_.shape();
    const int64_t rows = int64_t{q_indptr_[sequences_]} * s.q_heads;
    Output o{widened(out_.data(), s.q_dtype, rows * s.v_dim), {}};
    if (io_.lse) o.lse.assign(lse_.begin(), lse_.begin() + rows);
    return o;
  }
  const Limits& limits() const { return limits_; }

 private:
  void put(const int32_t* to, const std::vector<int32_t>& from) {
    runner_.stream().copy(const_cast<int32_t*>(to), from.data(), std::ssize(from) * 4);
    runner_.stream().synchronize();
  }

  Runner& runner_;
  DeviceMemory memory_;
  const Problem& p_;
  const int q_len_;
  const Limits limits_;
  const Batch host_;
  Batch batch_;
  std::vector<int32_t> q_indptr_, kv_len_, page_slots_;
  size_t sequences_ = 0;  // that are no padding
  std::vector<char> q_, out_;
  std::vector<float> lse_;
  int64_t rows_ = 0;
  Io io_;
  kv::PagedKvView view_;
};

// F8: one capture serves every step of as many sequences. It is made of short ones.
void Gpu::replay(const Shape& shape, Phase phase, int q_len) {
  if (!serves(shape, phase)) return;
  Problem p(shape, {{q_len, 900, 1}, {q_len, 900, 2}, {q_len, 900, 3}, {q_len, 900, 4}});
  FixedStep step(runner_, p, q_len);
  const LayerParams layer = p.layer();
  const auto plan = runner_.make_plan(p, {}, step.calls(layer));
  step.set(phase, {q_len, q_len + 1, q_len, 20});
  ASSERT_TRUE(step.plan(*plan).ok());
  auto graph = runner_.stream().capture("a step", [&] { step.launch(*plan, layer); });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_GT((*graph)->nodes(), 0);
  const std::vector<std::vector<int32_t>> steps = {
      {900, 899, 898, 897}, {q_len, 17, 300, 899}, {64, 65, 128, 512}, {500, 33}, {16},
      {900, 900, 900, 900}};
  for (const auto& lens : steps) {
    p.kv_lens() = lens;
    p.kv_lens().resize(4, 0);
    step.set(phase, lens);
    const Status planned = step.plan(*plan);
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    (*graph)->launch(runner_.stream());
    runner_.stream().synchronize();
    expect_ok();
    Output want = reference_.run(p, phase);
    want.out.resize(lens.size() * q_len * shape.q_heads * shape.v_dim);
    want.lse.resize(lens.size() * q_len * shape.q_heads);
    expect_close(
        step.result(), want, tolerance(shape), tolerance(shape),
        phase_name(phase) + text(", sequences: ", std::ssize(lens)) + text(", first of ", lens[0]));
  }
}

TEST_P(Graphs, ACaptureServesOtherLengthsAndFewerSequences) {
  if (!caps().graph_safe) return skip_undeclared("graph_safe");
  for (const Shape& shape : shapes()) {
    replay(shape, Phase::kDecode, 1);
    replay(shape, Phase::kVerify, 5);
  }
}
ATTUNE_SUITE(Graphs);

// What a step takes is there before it: the workspace, and what make_plan() allocated.
TEST_P(Gpu, PlanningAndRunningTakesNoDeviceMemory) {
  const auto free_memory = [] {
    auto device = device::create_cuda_device(0);
    return device.ok() ? (*device)->info().free_memory : -1;
  };
  for (const Shape& shape : shapes()) {
    const Problem p(shape, {{1, 900, 1}, {1, 1, 2}, {1, 300, 3}});
    FixedStep step(runner_, p, 1);
    const auto plan = runner_.make_plan(p);
    const auto run = [&](int32_t len) {
      step.set(Phase::kDecode, {len, 1, 1 + len / 4});
      EXPECT_TRUE(step.plan(*plan).ok());
      step.launch(*plan, p.layer());
      runner_.stream().synchronize();
    };
    run(900);
    const int64_t before = free_memory();
    for (int i = 0; i < 200; ++i) run(1 + 4 * i % 600);
    EXPECT_EQ(free_memory(), before);
    expect_ok();
  }
}

// A pool of more than 2^31 elements, and its last pages; the same bits as in a small one.
void Gpu::far_slots(const Shape& shape) {
  const Problem p(shape, {{1, 3 * shape.page_size + 1, 1}, {1, 5, 2}});
  const int64_t piece = p.view().page_stride, elem = tensor::dtype_bytes(shape.kv_dtype, 1);
  const auto slots = static_cast<int32_t>(((int64_t{1} << 31) + (int64_t{1} << 28)) * elem / piece);
  auto pool = runner_.device().allocate(slots * piece, "a large pool");
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  Problem far(shape, {{1, 3 * shape.page_size + 1, 1}, {1, 5, 2}});
  for (size_t i = 0; i < far.page_slots().size(); ++i) {
    int32_t& slot = far.page_slots()[i];
    const int32_t to = slots - 1 - static_cast<int32_t>(i);
    runner_.stream().copy(pool->as<char>() + to * piece, p.pool().data() + slot * piece, piece);
    slot = to;
  }
  runner_.stream().synchronize();
  const Output got = runner_.run_in(pool->data(), slots, far, Phase::kDecode);
  expect_same(got, runner_.run(p, Phase::kDecode), shape, "in far slots");
}

TEST_P(BugA14, OffsetsOf64Bits) {
  for (const Shape& shape : shapes()) far_slots(shape);
}
ATTUNE_SUITE(BugA14);

TEST_P(Gpu, AContextOf128KiTokens) {
  const Shape shape = adapt({.q_heads = 4, .kv_heads = 1, .qk_dim = 64, .v_dim = 64});
  if (!serves(shape, Phase::kDecode)) return;
  const Problem p(shape, {{1, 131072, 1}, {1, 40, 2}, {1, 131071, 3}});
  expect_close(runner_.run(p, Phase::kDecode), reference_.run(p, Phase::kDecode), tolerance(shape),
               tolerance(shape), "128 Ki");
}

TEST_P(Sanitized, EveryPhase) {
  for (Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kVerify}) {
    const int q = phase == Phase::kDecode ? 1 : 5;
    const std::vector<Seq> seqs = {{q, 37, 1}, {1, 1, 2}, {0, 9, 3}, {1, 0, 4}, {q, 130, 5}};
    for (const Shape& shape : shapes()) check(shape, seqs, phase_name(phase), phase);
  }
  check(ragged(2, 192, 128), {{20, 20, 1}, {3, 70, 2}}, "ragged");
}

// Rows enough for the kernels that prompts have, and a few keys' more than a tile; 8 bits; a tree.
TEST_P(Sanitized, EveryKernel) {
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    const Shape shape{.q_heads = 8, .kv_heads = 2, .qk_dim = 128, .v_dim = 128, .kv_dtype = kv};
    check(shape, {{70, 200, 1}, {3, 150, 2}, {40, 40, 3}}, "a prompt", Phase::kPrefill);
    check(shape, {{1, 200, 1}, {1, 65, 2}}, "a step", Phase::kDecode);
    check(shape, {{5, 70, 1}}, "a tree", Phase::kVerify, nullptr, tree_words({-1, 0, 0, 1, 1}));
  }
}

TEST_P(Sanitized, Replay) {
  if (!caps().graph_safe) return skip_undeclared("graph_safe");
  for (const Shape& shape : shapes()) replay(shape, Phase::kDecode, 1);
}
ATTUNE_SUITE(Sanitized);

}  // namespace
}  // namespace attune::attention::test
