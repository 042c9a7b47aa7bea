// The prefill kernel against float64 on the host, by the backend; skipped where no GPU is.
#include "attention/backends/flashinfer/testing/gpu_run.h"
#include "base/log.h"

namespace attune::attention {
namespace {

using tensor::DType;
using testing::GpuRun;
using testing::Problem;
using testing::ProblemOptions;
using testing::Seq;

class Fa3PrefillTest : public testing::GpuBackendTest {
 protected:
  void SetUp() override { use("fa3"); }
  void check(const ProblemOptions& o, const char* what, const Tuning& tuning = {}) {
    const Problem p(o);
    Limits limits = limits_of(o);
    limits.num_slots = p.num_slots;
    limits.tuning = tuning;
    GpuRun run(*device_, *backend_, limits);
    const Status planned = run.plan(p);
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    run.launch(true);
    run.expect_right(
        base::cat(what, ": ", o.q_heads, "/", o.kv_heads, " x ", o.head_dim, ", page ", o.page_size,
                  ", ", tensor::dtype_name(o.kv_dtype), ", window ", o.window),
        true);
  }
  static ProblemOptions options(std::vector<Seq> seqs, int32_t q_heads, int32_t kv_heads) {
    ProblemOptions o{.seqs = std::move(seqs), .phase = Phase::kPrefill};
    o.q_heads = q_heads;
    o.kv_heads = kv_heads;
    return o;
  }
};

// Ends about those of rows, blocks and tiles; sequences without rows, and rows without keys.
const std::vector<Seq> kSeqs = {{129, 129}, {0, 40},   {70, 70}, {17, 300}, {1, 1},
                                {200, 777}, {5, 1031}, {64, 64}, {33, 0}};

TEST_F(Fa3PrefillTest, HeadsPagesAndLayouts) {
  int n = 0;
  for (DType dtype : backend_->capabilities().kv_dtypes)
    for (int32_t dim : {64, 128})
      for (const auto& [q, kv] : {std::pair{32, 8}, {4, 4}, {14, 2}, {16, 1}, {64, 1}})
        for (int32_t page : backend_->capabilities().page_sizes) {
          ProblemOptions o = options(kSeqs, q, kv);
          o.kv_dtype = dtype;
          o.head_dim = dim;
          o.page_size = page;
          lay_out(o, n++);
          check(o, "prefill");
        }
}

TEST_F(Fa3PrefillTest, LongSequences) {
  for (DType dtype : backend_->capabilities().kv_dtypes)
    for (int32_t page : {16, 64}) {
      ProblemOptions o = options({{1500, 1500}, {300, 300}, {500, 2047}}, 32, 8);
      o.kv_dtype = dtype;
      o.page_size = page;
      check(o, "long");
      o.seqs = {{3000, 3000}};
      check(o, "one");
    }
}

// Keys in parts whose sums meet in memory; as many as suit, as told, and none.
TEST_F(Fa3PrefillTest, ShortChunksOnLongContexts) {
  for (DType dtype : backend_->capabilities().kv_dtypes)
    for (int32_t splits : {0, 1, 2, 7})
      for (int32_t window : {0, 700}) {
        ProblemOptions o = options({{100, 6000}, {40, 2500}, {20, 20}}, 8, 2);
        o.kv_dtype = dtype;
        o.window = window;
        check(o, base::cat("splits ", splits).c_str(), {.num_splits = splits});
        o.soft_cap = 20;
        o.seqs = {{90, 9000}};
        check(o, base::cat("splits ", splits, ", soft cap").c_str(), {.num_splits = splits});
      }
}

TEST_F(Fa3PrefillTest, WindowsNoMaskAndMoreQueriesThanKeys) {
  for (DType dtype : backend_->capabilities().kv_dtypes) {
    for (int32_t window : {0, 1, 100, 128})
      for (bool causal : {true, false}) {
        ProblemOptions o = options(kSeqs, 8, 2);
        o.kv_dtype = dtype;
        o.window = window;
        o.causal = causal;
        check(o, causal ? "causal" : "not causal");
      }
    ProblemOptions o = options({{300, 200}, {90, 3}, {140, 0}, {64, 64}}, 8, 2);
    o.kv_dtype = dtype;
    check(o, "more queries than keys");
  }
}

TEST_F(Fa3PrefillTest, EveryHeadByItself) {
  for (DType dtype : backend_->capabilities().kv_dtypes) {
    ProblemOptions o = options(kSeqs, 32, 8);
    o.kv_dtype = dtype;
    check(o, "pack-gqa off", {.pack_gqa = Toggle::kOff});
  }
}

// A step's list is made from the lengths that are on the device by then.
TEST_F(Fa3PrefillTest, GraphsServeOtherLengths) {
  for (DType dtype : backend_->capabilities().kv_dtypes) {
    ProblemOptions o = options({{600, 5000}, {300, 300}, {64, 640}, {200, 4000}}, 32, 8);
    o.kv_dtype = dtype;
    std::vector<Problem> steps;
    steps.emplace_back(o);
    o.seqs = {{90, 90}, {77, 777}, {500, 1300}, {1, 4}};
    o.seed = 7;
    steps.emplace_back(o);
    o.seqs = {{100, 900}, {0, 15}, {0, 0}, {0, 0}};
    o.seed = 8;
    steps.emplace_back(o);
    check_graph(base::cat("prefill, ", tensor::dtype_name(dtype)), steps);
  }
}

}  // namespace
}  // namespace attune::attention
