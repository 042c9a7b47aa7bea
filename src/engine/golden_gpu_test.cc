// The real model on a GPU; see golden.h.
#include "device/device.h"
#include "engine/golden.h"

namespace attune {
namespace {

using engine::testing::expect_free_run;
using engine::testing::expect_golden;
using engine::testing::expect_nothing_held;
using engine::testing::make_engine;
using engine::testing::test_options;

// Of bf16 activations: an argmax whose lead is smaller may differ.
constexpr double kMargin = 0.25;

class GoldenOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = ::attune::device::create_cuda_device(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    options_ = test_options();
    if (!std::ifstream(options_.model)) GTEST_SKIP() << options_.model << " is not there";
    options_.device = "cuda";
    if (const char* folders = std::getenv("ATTUNE_CUDA_LIBRARIES"))
      options_.cuda_libraries = folders;
  }
  void check() {
    auto engine = make_engine(options_);
    ASSERT_TRUE(engine);
    expect_golden(*engine, kMargin);
    expect_free_run(*engine, kMargin);
    expect_free_run(*engine, kMargin);  // from the cache, and by graphs that were captured before
    expect_nothing_held(*engine);
  }
  Options options_;
};

TEST_F(GoldenOnGpu, Defaults) {
  check();
}

TEST_F(GoldenOnGpu, WithoutGraphs) {
  options_.disable_cuda_graph = true;
  check();
}

TEST_F(GoldenOnGpu, WithoutDependentLaunch) {
  options_.enable_pdl = "off";
  check();
}

TEST_F(GoldenOnGpu, ReferenceBackend) {
  options_.attention_backend = "reference";
  check();
}

TEST_F(GoldenOnGpu, Deterministic) {
  options_.attention_backend = "reference";
  options_.enable_deterministic_inference = true;
  check();
}

TEST_F(GoldenOnGpu, PrefillInPieces) {
  options_.chunked_prefill_size = 16;
  check();
}

class GoldenPages : public GoldenOnGpu, public ::testing::WithParamInterface<int> {};

TEST_P(GoldenPages, AnyPageSize) {
  options_.page_size = GetParam();
  check();
}
INSTANTIATE_TEST_SUITE_P(Sizes, GoldenPages, ::testing::Values(1, 16, 32, 64));

}  // namespace
}  // namespace attune
