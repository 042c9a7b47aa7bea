// FlashInfer's latent kernels against float64 on the host; skipped where no GPU is.
#include "attention/backends/flashinfer/testing/gpu_run.h"
#include "attention/backends/flashinfer_mla/flashinfer_mla_backend.h"
#include "base/log.h"

namespace attune::attention {
namespace {

using testing::Problem;
using testing::ProblemOptions;
using testing::Seq;

class FlashinferMlaTest : public testing::GpuBackendTest {
 protected:
  void SetUp() override { use("flashinfer_mla"); }
};

ProblemOptions latent(int32_t heads, std::vector<Seq> seqs, Phase phase, int32_t page_size) {
  ProblemOptions o{.seqs = std::move(seqs), .phase = phase, .q_heads = heads, .kv_heads = 1};
  o.page_size = page_size;
  o.latent = true;
  return o;
}

std::string name(const ProblemOptions& o, const char* what) {
  return base::cat(what, ": ", o.q_heads, " heads, page ", o.page_size);
}

std::vector<Seq> decode_seqs() {
  return {{1, 1}, {1, 63}, {1, 64}, {0, 17}, {1, 65}, {1, 0}, {1, 129}, {1, 1000}, {0, 0}};
}
std::vector<Seq> long_seqs() {
  return {{1, 8999}, {1, 31}, {1, 4097}, {1, 700}};
}
std::vector<Seq> prefill_seqs() {
  return {{1, 1}, {30, 30}, {17, 300}, {0, 40}, {65, 129}, {5, 1031}, {40, 3}, {4, 0}};
}

TEST_F(FlashinferMlaTest, Decode) {
  int n = 0;
  for (int32_t heads : {16, 128, 8})
    for (int32_t page : {64, 16, 1}) {
      ProblemOptions o = latent(heads, decode_seqs(), Phase::kDecode, page);
      o.page_padding = n % 2;
      o.spare_pages = n % 3;
      o.out_gap = n % 4 == 1 ? 24 : 0;
      o.seed = ++n;
      ProblemOptions split = o;
      split.seqs = long_seqs();
      check(name(o, "decode"), {o, split, o});
    }
}

TEST_F(FlashinferMlaTest, ExtendAndVerify) {
  for (int32_t heads : {16, 128}) {
    ProblemOptions o = latent(heads, prefill_seqs(), Phase::kPrefill, 64);
    ProblemOptions split = o;
    split.seqs = {{16, 5000}, {3, 700}};
    check(name(o, "extend"), {o, split});
    o = latent(heads, {{4, 4}, {4, 2000}, {0, 0}, {4, 77}}, Phase::kVerify, 32);
    check(name(o, "verify"), {o});
  }
}

TEST_F(FlashinferMlaTest, TheKernelForOtherGpus) {
  backend_ = flashinfer_mla::create_fa2(*device_);
  for (int32_t heads : {16, 128}) {
    ProblemOptions o = latent(heads, decode_seqs(), Phase::kDecode, 64);
    ProblemOptions split = o;
    split.seqs = long_seqs();
    check(name(o, "fa2, decode"), {o, split});
    o = latent(heads, prefill_seqs(), Phase::kPrefill, 16);
    check(name(o, "fa2, extend"), {o});
  }
}

// A graph of one batch serves every later one of as many sequences.
TEST_F(FlashinferMlaTest, GraphsServeOtherLengths) {
  for (int32_t heads : {16, 128}) {
    std::vector<Problem> steps;
    steps.emplace_back(latent(heads, {{1, 5000}, {1, 300}, {1, 64}, {1, 4}}, Phase::kDecode, 64));
    steps.emplace_back(latent(heads, {{1, 9}, {1, 64}, {1, 1300}, {1, 77}}, Phase::kDecode, 64));
    steps.emplace_back(latent(heads, {{1, 900}, {1, 15}, {0, 0}, {0, 0}}, Phase::kDecode, 64));
    check_graph(base::cat(heads, " heads"), steps);
  }
}

}  // namespace
}  // namespace attune::attention
