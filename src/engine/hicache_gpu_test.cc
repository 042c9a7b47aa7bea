// The tiers on a GPU: pages that have gone through them give the same bits, by both ways of copying
// and in every layout.
#include "device/device.h"
#include "engine/hicache_cases.h"

namespace attune {
namespace {

using engine::testing::Way;

class HiCacheOnGpu : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    auto device = ::attune::device::create_cuda_device(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
  }
  static Options on_gpu(Options options) {
    options.device = "cuda";
    options.dtype = "bfloat16";
    options.cuda_libraries = engine::testing::cuda_libraries();
    options.cuda_graph_max_bs = 4;
    return options;
  }
};

TEST_P(HiCacheOnGpu, SameBitsThroughEveryTier) {
  engine::testing::expect_same_bits(GetParam(),
                                    on_gpu(engine::testing::plain_options(GetParam().model)),
                                    on_gpu(engine::testing::tiered_options(GetParam().model)));
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const char* model : {"llama_d64", "deepseek_v2_576"}) {
    all.push_back({model, "direct", "layer_first", "write_through"});
    all.push_back({model, "kernel", "layer_first", "write_through"});
    all.push_back({model, "direct", "page_first_direct", "write_through_selective"});
    all.push_back({model, "kernel", "page_first_direct", "write_through"});
    all.push_back({model, "kernel", "page_first", "write_back"});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, HiCacheOnGpu, testing::ValuesIn(ways()),
                         [](const auto& info) { return engine::testing::name_of(info.param); });

}  // namespace
}  // namespace attune
