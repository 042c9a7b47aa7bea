// FlashInfer's kernels against float64 on the host; skipped where no GPU is.
#include "attention/backends/flashinfer/testing/gpu_run.h"
#include "base/log.h"

namespace attune::attention {
namespace {

using tensor::DType;
using testing::Problem;
using testing::ProblemOptions;
using testing::Seq;

class FlashinferTest : public testing::GpuBackendTest {
 protected:
  void SetUp() override { use("flashinfer"); }
  // What this build has.
  std::vector<int32_t> dims() const {
    std::vector<int32_t> all;
    for (const HeadDims& d : backend_->capabilities().head_dims) all.push_back(d.qk);
    return all;
  }
  const std::vector<DType>& kv_dtypes() const { return backend_->capabilities().kv_dtypes; }
};

std::string name(const ProblemOptions& o, const char* what) {
  return base::cat(
      what, ": ", o.q_heads, "/", o.kv_heads, " x ", o.head_dim, ", page ", o.page_size, ", ",
      tensor::dtype_name(o.kv_dtype), o.window ? base::cat(", window ", o.window) : "",
      o.soft_cap > 0 ? ", soft cap" : "", o.tree ? ", tree" : "", o.causal ? "" : ", not causal");
}

// Lengths about pages, chunks and tiles; sequences without rows, and rows without keys.
std::vector<Seq> decode_seqs() {
  return {{1, 1}, {1, 63}, {1, 64},  {1, 65},   {0, 17},  {1, 0},
          {1, 2}, {0, 0},  {1, 129}, {1, 1000}, {1, 333}, {0, 0}};
}
std::vector<Seq> long_seqs() {
  return {{1, 8999}, {1, 31}, {1, 4097}, {1, 700}};
}
std::vector<Seq> prefill_seqs() {
  return {{1, 1}, {70, 70}, {17, 300}, {0, 40}, {129, 129}, {5, 1031}, {200, 777}, {1, 513}};
}
std::vector<Seq> verify_seqs() {
  return {{8, 8}, {8, 77}, {8, 1030}, {8, 128}, {0, 0}, {8, 9}};
}

TEST_F(FlashinferTest, Decode) {
  const int32_t heads[][2] = {{8, 8}, {8, 2}, {32, 8}, {16, 1}, {6, 2}, {64, 1}};
  const int32_t pages[] = {1, 16, 32, 64};
  int n = 0;
  for (const auto& [q, kv] : heads)
    for (int32_t dim : dims()) {
      ProblemOptions o{.seqs = decode_seqs(), .q_heads = q, .kv_heads = kv, .head_dim = dim};
      o.page_size = pages[n % 4];
      o.page_padding = n % 2;
      o.token_major = n % 3 == 0;
      o.spare_pages = n % 3;
      o.out_gap = n % 4 == 1 ? 24 : 0;
      o.seed = ++n;
      ProblemOptions split = o;
      split.seqs = long_seqs();
      check(name(o, "decode"), {o, split});
    }
}

TEST_F(FlashinferTest, DecodeOfOtherKeys) {
  for (int32_t dim : dims())
    for (const auto& [q, kv] : {std::pair{32, 8}, {4, 4}})
      for (DType dtype : kv_dtypes()) {
        ProblemOptions o{.seqs = decode_seqs(), .q_heads = q, .kv_heads = kv, .head_dim = dim};
        o.kv_dtype = dtype;
        ProblemOptions split = o;
        split.seqs = long_seqs();
        check(name(o, "decode"), {o, split});
      }
}

TEST_F(FlashinferTest, WindowsAndSoftCaps) {
  size_t n = 0;
  for (int32_t window : {0, 1, 100, 1024})
    for (float cap : {0.0f, 30.0f})
      for (const auto& [q, kv] : {std::pair{8, 2}, {4, 4}}) {
        if (window == 0 && cap == 0) continue;
        ProblemOptions o{.seqs = decode_seqs(), .q_heads = q, .kv_heads = kv, .window = window};
        o.soft_cap = cap;
        o.head_dim = dims()[n % dims().size()];
        o.kv_dtype = kv_dtypes()[n++ / 2 % kv_dtypes().size()];
        ProblemOptions split = o;
        split.seqs = long_seqs();
        check(name(o, "decode"), {o, split});
        o.phase = Phase::kPrefill;
        o.seqs = prefill_seqs();
        check(name(o, "prefill"), {o});
      }
}

TEST_F(FlashinferTest, Prefill) {
  int n = 0;
  for (int32_t dim : dims())
    for (const auto& [q, kv] : {std::pair{4, 4}, {8, 2}, {16, 1}})
      for (DType dtype : kv_dtypes()) {
        ProblemOptions o{.seqs = prefill_seqs(), .phase = Phase::kPrefill, .q_heads = q};
        o.kv_heads = kv;
        o.head_dim = dim;
        o.kv_dtype = dtype;
        o.page_size = n % 2 ? 16 : 64;
        o.page_padding = n % 3 == 0;
        o.out_gap = n % 5 == 1 ? 8 : 0;
        o.seed = ++n;
        ProblemOptions few = o;  // tiles of 16 and 64, and splits
        few.seqs = {{2, 5000}, {3, 40}};
        ProblemOptions middle = o;
        middle.seqs = {{20, 3000}, {9, 9}, {16, 100}};
        check(name(o, "prefill"), {o, few, middle});
      }
}

// Whole tiles of single heads, enough of them for the kernel of sm90.
TEST_F(FlashinferTest, LongPrefill) {
  int n = 0;
  for (int32_t dim : dims())
    for (const auto& [q, kv] : {std::pair{32, 8}, {32, 32}, {16, 1}})
      for (int32_t page : {16, 64, 1}) {
        ProblemOptions o{.seqs = {{300, 300}, {257, 1001}, {129, 129}, {0, 40}, {500, 2047}},
                         .phase = Phase::kPrefill,
                         .q_heads = q};
        o.kv_heads = kv;
        o.head_dim = dim;
        o.page_size = page;
        lay_out(o, n++);
        ProblemOptions one = o;
        one.seqs = {{1500, 1500}};
        check(name(o, "long prefill"), {o, one});
      }
}

TEST_F(FlashinferTest, NotCausalAndMoreQueriesThanKeys) {
  ProblemOptions o{.seqs = prefill_seqs(), .phase = Phase::kPrefill, .causal = false};
  check(name(o, "prefill"), {o});
  o.window = 100;
  check(name(o, "prefill"), {o});
  o.causal = true;
  o.window = 0;
  o.seqs = {{300, 200}, {9, 3}, {40, 0}, {64, 64}};
  check(name(o, "more queries than keys"), {o});
  o.window = 30;
  check(name(o, "more queries than keys"), {o});
  o.soft_cap = 20;
  check(name(o, "more queries than keys"), {o});
}

TEST_F(FlashinferTest, TokenTrees) {
  size_t n = 0;
  for (const auto& [q, kv] : {std::pair{32, 8}, {4, 4}, {16, 1}})
    for (int32_t window : {0, 5, 60})
      for (bool tree : {true, false}) {
        ProblemOptions o{.seqs = verify_seqs(), .phase = Phase::kVerify, .q_heads = q};
        o.kv_heads = kv;
        o.window = window;
        o.tree = tree;
        o.head_dim = dims()[n % dims().size()];
        o.kv_dtype = kv_dtypes()[n++ / 2 % kv_dtypes().size()];
        ProblemOptions more = o;
        more.seqs = {{64, 700}, {64, 64}};
        ProblemOptions split = o;
        split.seqs = {{8, 6000}};
        check(name(o, "verify"), {o, more, split});
      }
  ProblemOptions later{.seqs = {{3, 9}}, .phase = Phase::kVerify, .tree = true};
  Problem p(later);
  p.tree = {0b101, 0b010, 0b100};
  EXPECT_FALSE(backend_->supports(p.batch()).ok());
}

// A graph of one batch serves every later one of as many sequences.
TEST_F(FlashinferTest, GraphsServeOtherLengths) {
  struct Case {
    int32_t q_heads, kv_heads, window;
    Phase phase;
  };
  for (const Case& c : {Case{32, 8, 0, Phase::kDecode},
                        {4, 4, 0, Phase::kDecode},
                        {8, 2, 200, Phase::kDecode},
                        {8, 2, 0, Phase::kVerify}}) {
    ProblemOptions o{.phase = c.phase, .q_heads = c.q_heads, .kv_heads = c.kv_heads};
    o.window = c.window;
    o.tree = c.phase == Phase::kVerify;
    const int32_t q = o.tree ? 4 : 1;
    std::vector<Problem> steps;
    o.seqs = {{q, 5000}, {q, 300}, {q, 64}, {q, 4000}, {q, 4}};
    steps.emplace_back(o);  // the largest: later ones find room where this was
    o.seqs = {{q, 4}, {q, 77}, {q, 1300}, {q, 4}, {q, 640}};
    o.seed = 7;
    steps.emplace_back(o);
    o.seqs = {{q, 900}, {q, 15}, {q, 33}, {0, 0}, {0, 0}};
    o.seed = 8;
    steps.emplace_back(o);
    check_graph(base::cat(c.q_heads, "/", c.kv_heads), steps);
  }
}

}  // namespace
}  // namespace attune::attention
