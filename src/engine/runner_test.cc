#include "engine/runner.h"

#include <gtest/gtest.h>

namespace attune::engine {
namespace {

formats::ModelConfig gqa_model() {
  formats::ModelConfig m;
  m.num_layers = 5;
  m.num_heads = 8;
  m.num_kv_heads = 2;
  m.head_dim = m.v_head_dim = 64;
  m.attention_scale = 0.125;
  return m;
}

RunnerConfig config_of(const formats::ModelConfig& m) {
  RunnerConfig c;
  c.geometry.layer = {m.num_kv_heads, m.head_dim, m.v_head_dim, tensor::DType::kBF16};
  c.geometry.layers = m.num_layers;
  c.geometry.page_size = 16;
  c.num_slots = 100;
  c.max_seqs = 4;
  c.max_tokens = 128;
  c.max_model_len = 1024;
  c.act = tensor::DType::kBF16;
  return c;
}

// Backends that build something for a call build it for these (Limits::calls).
TEST(AttentionLimits, NameEveryKindOfCallOnce) {
  formats::ModelConfig m = gqa_model();
  const auto windows = [&] {
    const auto limits = attention_limits(config_of(m), m, 1);
    std::vector<int32_t> found;
    for (const attention::Call& c : limits[0].calls) found.push_back(c.layer.window);
    return found;
  };
  EXPECT_EQ(windows(), (std::vector<int32_t>{0}));
  m.windows = {0, 128, 0, 64, 128};
  EXPECT_EQ(windows(), (std::vector<int32_t>{0, 64, 128}));

  const attention::Call call = attention_limits(config_of(m), m, 1)[0].calls[1];
  EXPECT_EQ(call.layer.q_heads, 8);
  EXPECT_EQ(call.layer.scale, 0.125f);
  EXPECT_EQ(call.io.q_dtype, tensor::DType::kBF16);
  EXPECT_EQ(call.io.q_stride, 8 * 64);
  EXPECT_EQ(call.io.out_stride, 8 * 64);
  EXPECT_EQ(call.io.lse, nullptr);
  EXPECT_EQ(call.kv.page_stride, 2 * 2 * 16 * 64 * 2);
  EXPECT_EQ(call.kv.num_slots, 100);
}

}  // namespace
}  // namespace attune::engine
