// fa3 outside deterministic mode, where chunks of keys follow from the batch, against float64 on
// the host; skipped where no GPU is.
#include "attention/backends/flashinfer/testing/gpu_run.h"
#include "base/log.h"

namespace attune::attention {
namespace {

using tensor::DType;
using testing::GpuRun;
using testing::Problem;
using testing::ProblemOptions;
using testing::Seq;

class Fa3Test : public testing::GpuBackendTest {
 protected:
  void SetUp() override {
    use("fa3");
    if (!IsSkipped() && device_->info().sm != 90) GTEST_SKIP() << "needs sm90";
  }

  // Plans, and runs two layers: the second one begins ahead of the end of the first.
  void check_twice(const std::string& what, const ProblemOptions& o, const Tuning& tuning = {},
                   std::vector<int32_t> windows = {}) {
    const Problem p(o);
    Limits limits = limits_of(o);
    limits.num_slots = p.num_slots;
    limits.tuning = tuning;
    for (int32_t window : windows) {
      limits.calls.emplace_back();
      limits.calls.back().layer.window = window;
      limits.calls.back().kv.dtype = DType::kBF16;
    }
    GpuRun run(*device_, *backend_, limits);
    const Status planned = run.plan(p);
    ASSERT_TRUE(planned.ok()) << what << ": " << planned.to_string();
    run.launch(true);
    const std::vector<uint16_t> first = run.result();
    run.launch(true);
    run.launch(true);
    run.expect_right(what, true);
    EXPECT_EQ(first, run.result()) << what << ": a later layer's bits";
  }
};

std::string name(const ProblemOptions& o, const char* what) {
  return base::cat(what, ": ", o.q_heads, "/", o.kv_heads, " x ", o.head_dim, ", page ",
                   o.page_size, ", ", tensor::dtype_name(o.kv_dtype),
                   o.window ? base::cat(", window ", o.window) : "");
}

// Lengths about pages, chunks and tiles; sequences without rows, and rows without keys.
std::vector<Seq> mixed() {
  return {{1, 1}, {1, 63}, {1, 64}, {0, 17}, {1, 0}, {1, 129}, {1, 3000}, {1, 333}, {0, 0}};
}

TEST_F(Fa3Test, DecodeOfEveryKernel) {
  const int32_t heads[][2] = {{8, 8}, {32, 8}, {24, 2}, {40, 2}, {64, 1}, {96, 1}};
  const int32_t pages[] = {1, 2, 4, 8, 16, 32, 64, 128};
  int n = 0;
  for (const auto& [q, kv] : heads)
    for (int32_t dim : {64, 128})
      for (DType dtype : backend_->capabilities().kv_dtypes) {
        ProblemOptions o{.seqs = mixed(), .q_heads = q, .kv_heads = kv, .head_dim = dim};
        o.kv_dtype = dtype;
        o.page_size = pages[n % 8];
        o.page_padding = n % 2;
        o.token_major = n % 3 == 0;
        o.out_gap = n % 4 == 1 ? 24 : 0;
        o.seed = ++n;
        check_twice(name(o, "decode"), o);
        o.seqs = {{1, 8999}};
        check_twice(name(o, "one long sequence"), o);
      }
}

// More blocks than the plan has threads, and more parts than there is room for.
TEST_F(Fa3Test, ManyBlocks) {
  for (int32_t splits : {0, 7}) {
    Tuning tuning;
    tuning.num_splits = splits;
    ProblemOptions o{.seqs = {{900, 900}, {140, 700}, {1, 3000}},
                     .q_heads = 64,
                     .kv_heads = 1,
                     .head_dim = 64,
                     .page_size = 16};
    o.phase = Phase::kVerify;
    check_twice(name(o, splits ? "blocks that are cut" : "blocks"), o, tuning);
  }
}

// Chunks by a plan of the window's own, and cut out of another's.
TEST_F(Fa3Test, WindowsWithAndWithoutAPlanOfTheirOwn) {
  const int32_t pages[] = {16, 1, 2, 64, 4};
  int n = 0;
  for (int32_t window : {1, 100, 1024})
    for (std::vector<int32_t> planned : {std::vector<int32_t>{}, {window}, {100, 1024, 64, 5}}) {
      ProblemOptions o{.seqs = mixed(), .page_size = pages[n++ % 5], .window = window};
      check_twice(name(o, "decode"), o, {}, planned);
      o.seqs = {{1, 8999}, {1, 70}};
      check_twice(name(o, "long"), o, {}, planned);
      o.phase = Phase::kPrefill;
      o.seqs = {{70, 70}, {17, 300}, {0, 40}, {129, 129}, {200, 777}};
      check_twice(name(o, "prefill"), o, {}, planned);
    }
}

TEST_F(Fa3Test, RowsOfEveryPhase) {
  const int32_t pages[] = {16, 1, 64, 4, 2};
  int n = 0;
  for (const auto& [q, kv] : {std::pair{32, 8}, {4, 4}, {16, 1}})
    for (int32_t window : {0, 60})
      for (bool tree : {true, false}) {
        ProblemOptions o{.seqs = {{8, 8}, {8, 77}, {8, 1030}, {0, 0}, {8, 9}, {8, 6000}},
                         .phase = Phase::kVerify,
                         .q_heads = q};
        o.kv_heads = kv;
        o.page_size = pages[n++ % 5];
        o.window = window;
        o.tree = tree;
        check_twice(name(o, tree ? "tree" : "verify"), o);
        o.seqs = {{64, 700}, {64, 64}};
        check_twice(name(o, tree ? "large tree" : "extend"), o);
      }
  ProblemOptions o{.seqs = {{300, 200}, {9, 3}, {40, 0}, {64, 64}}, .phase = Phase::kPrefill};
  check_twice("more queries than keys", o);
  o.seqs = {{300, 1000}, {9, 9}};
  o.causal = false;
  check_twice("not causal", o);
}

TEST_F(Fa3Test, SplitsAndHeadsAsWished) {
  for (int32_t splits : {1, 2, 7, 1000})
    for (Toggle pack : {Toggle::kOn, Toggle::kOff}) {
      ProblemOptions o{.seqs = mixed(), .q_heads = 32, .kv_heads = 8};
      check_twice(base::cat("splits ", splits, ", packed ", pack == Toggle::kOn), o,
                  {.num_splits = splits, .pack_gqa = pack});
    }
}

// More items than multiprocessors, of any number of tiles, so that the warps that gather them get
// ahead of each other.
TEST_F(Fa3Test, SmallPagesOfManySequences) {
  ProblemOptions o{.q_heads = 16, .kv_heads = 8};
  for (int32_t i = 0; i < 120; ++i) o.seqs.push_back({1, i * 37 % 500 + (i % 20 == 7 ? 3000 : 0)});
  for (int32_t page : {1, 2, 4})
    for (DType dtype : {DType::kBF16, DType::kF8E4M3})
      for (int32_t splits : {0, 1}) {
        o.page_size = page;
        o.kv_dtype = dtype;
        check_twice(name(o, "many"), o, {.num_splits = splits});
      }
}

// A query that is not a number is seen in its row, and nowhere else.
TEST_F(Fa3Test, NaNStaysNaNInItsRow) {
  for (Phase phase : {Phase::kDecode, Phase::kPrefill})
    for (DType dtype : backend_->capabilities().kv_dtypes) {
      ProblemOptions o{.seqs = {{1, 700}, {1, 64}, {1, 5000}}, .phase = phase, .q_heads = 32};
      if (phase == Phase::kPrefill) o.seqs = {{150, 400}, {9, 9}, {70, 5000}};
      o.kv_dtype = dtype;
      Problem p(o);
      Limits limits = limits_of(o);
      limits.num_slots = p.num_slots;
      GpuRun run(*device_, *backend_, limits);
      ASSERT_TRUE(run.plan(p).ok());
      run.launch(true);
      const std::vector<uint16_t> want = run.result();
      const int32_t token = p.num_tokens() - 1, head = 13;
      p.q_bits[int64_t{token} * p.q_stride() + head * o.head_dim + 5] = 0x7fc0;
      ASSERT_TRUE(run.plan(p).ok());
      run.launch(true);
      const std::vector<uint16_t> got = run.result();
      const int64_t row = int64_t{token} * p.out_stride() + head * p.v_dim();
      int64_t numbers = 0, others = 0;
      for (int64_t i = 0; i < p.out_elems(); ++i) {
        const bool here = i >= row && i < row + p.v_dim();
        numbers += here && !std::isnan(tensor::bf16_to_f32(got[i]));
        others += !here && got[i] != want[i];
      }
      EXPECT_EQ(numbers, 0) << name(o, "numbers in the row");
      EXPECT_EQ(others, 0) << name(o, "other rows");
    }
}

// With dependent launch and without, by the stream's switch and by the backend's.
TEST_F(Fa3Test, DependentLaunchKeepsTheBits) {
  const ProblemOptions o{.seqs = {{1, 5000}, {1, 64}, {1, 4097}, {1, 700}}, .q_heads = 32};
  const Problem p(o);
  Limits limits = limits_of(o);
  limits.num_slots = p.num_slots;
  std::vector<uint16_t> want;
  for (const auto& [stream, backend] :
       {std::pair{true, Toggle::kAuto}, {true, Toggle::kOff}, {false, Toggle::kAuto}}) {
    limits.tuning.pdl = backend;
    GpuRun run(*device_, *backend_, limits);
    run.stream().set_pdl(stream);
    ASSERT_TRUE(run.plan(p).ok());
    for (int layer = 0; layer < 5; ++layer) run.launch(false);
    if (want.empty()) want = run.result();
    EXPECT_EQ(run.result(), want) << stream;
    EXPECT_EQ(run.stream().pdl(), stream);
  }
}

}  // namespace
}  // namespace attune::attention
