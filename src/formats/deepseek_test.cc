// Configs and files of the DeepSeek families (tools/golden_deepseek.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "formats/test_golden.h"

namespace attune::formats {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

double mscale(double all_dim) {
  return 0.1 * all_dim * std::log(40.0) + 1;
}

TEST(DeepseekConfig, V2WithoutQueryLatent) {
  const ModelConfig c = open_golden("deepseek_v2").config;
  EXPECT_EQ(c.architecture, "deepseek_v2");
  EXPECT_EQ(c.mla, (MlaConfig{.kv_lora_rank = 32, .q_lora_rank = 0, .nope_dim = 24}));
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.v_head_dim, 16);
  EXPECT_EQ(c.num_kv_heads, 4);
  EXPECT_EQ(c.rope.dim, 8);
  EXPECT_EQ(c.rope.style, RopeStyle::kInterleaved);
  EXPECT_EQ(c.rope.attention_factor, 1.0);
  EXPECT_DOUBLE_EQ(c.attention_scale, std::pow(mscale(0.707), 2) / std::sqrt(32.0));
  EXPECT_EQ(c.max_model_len, 640);  // YaRN's reach is in max_position_embeddings already
  EXPECT_EQ(c.moe, (MoeConfig{.num_experts = 8,
                              .layers = {false, true, true},
                              .experts_per_token = 3,
                              .intermediate_size = 32,
                              .shared_experts = 2}));
  EXPECT_FALSE(c.moe.is_moe(0));
  EXPECT_TRUE(c.moe.is_moe(1) && c.moe.is_moe(2));
}

TEST(DeepseekConfig, V2WithGroups) {
  const ModelConfig c = open_golden("deepseek_v2_groups").config;
  EXPECT_EQ(c.mla.q_lora_rank, 48);
  EXPECT_TRUE(c.qkv_bias && c.o_bias);
  EXPECT_DOUBLE_EQ(c.rope.attention_factor, mscale(1.0) / mscale(0.6));
  EXPECT_DOUBLE_EQ(c.attention_scale, std::pow(mscale(0.6), 2) / std::sqrt(32.0));
  EXPECT_EQ(c.moe.num_groups, 4);
  EXPECT_EQ(c.moe.groups_per_token, 2);
  EXPECT_EQ(c.moe.routed_scale, 4);
  EXPECT_FALSE(c.moe.group_top2 || c.moe.correction_bias || c.moe.sigmoid || c.moe.normalize);
}

TEST(DeepseekConfig, V3) {
  const ModelConfig c = open_golden("deepseek_v3").config;
  EXPECT_EQ(c.architecture, "deepseek_v3");
  EXPECT_EQ(c.num_nextn_layers, 1);
  EXPECT_TRUE(c.moe.sigmoid && c.moe.correction_bias && c.moe.group_top2 && c.moe.normalize);
  EXPECT_EQ(c.moe.num_groups, 4);
  EXPECT_EQ(c.moe.routed_scale, 2.5);
  const Result<ModelConfig> half = changed_golden("deepseek_v3", R"({"rope_interleave":false})");
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(half->rope.style, RopeStyle::kHalf);
}

// DeepseekV3Config of transformers normalises and scales unless told otherwise, DeepseekV2Config
// does neither.
TEST(DeepseekConfig, AbsentWeightingIsTheClassDefault) {
  const char* kAbsent = R"({"norm_topk_prob":null,"routed_scaling_factor":null})";
  const Result<ModelConfig> v3 = changed_golden("deepseek_v3", kAbsent);
  ASSERT_TRUE(v3.ok()) << v3.status().to_string();
  EXPECT_TRUE(v3->moe.normalize);
  EXPECT_EQ(v3->moe.routed_scale, 2.5);
  const Result<ModelConfig> v2 = changed_golden("deepseek_v2_groups", kAbsent);
  ASSERT_TRUE(v2.ok()) << v2.status().to_string();
  EXPECT_FALSE(v2->moe.normalize);
  EXPECT_EQ(v2->moe.routed_scale, 1);
  const Result<ModelConfig> off =
      changed_golden("deepseek_v3", R"({"norm_topk_prob":false,"routed_scaling_factor":1.0})");
  ASSERT_TRUE(off.ok()) << off.status().to_string();
  EXPECT_FALSE(off->moe.normalize);
  EXPECT_EQ(off->moe.routed_scale, 1);
}

// Both conversions say what config.json says.
TEST(DeepseekConfig, GgufOfBothConversions) {
  ModelConfig old = open_golden("deepseek_v2.gguf").config;
  const ModelConfig v2 = open_golden("deepseek_v2").config;
  EXPECT_EQ(old.mla, v2.mla);
  EXPECT_EQ(old.moe, v2.moe);
  EXPECT_EQ(old.head_dim, 32);
  EXPECT_EQ(old.v_head_dim, 16);
  EXPECT_EQ(old.rope.attention_factor, 1.0);
  EXPECT_NEAR(old.attention_scale, v2.attention_scale, 1e-7);
  ModelConfig split = open_golden("deepseek_v3.gguf").config;
  const ModelConfig v3 = open_golden("deepseek_v3").config;
  EXPECT_TRUE(split.mla.split_kv_b);
  split.mla.split_kv_b = false;
  EXPECT_EQ(split.mla, v3.mla);
  EXPECT_EQ(split.moe, v3.moe);
  EXPECT_EQ(split.num_kv_heads, 4);
  EXPECT_EQ(split.head_dim, 32);
  EXPECT_NEAR(split.attention_scale, v3.attention_scale, 1e-7);
}

TEST(DeepseekConfig, EveryFieldIsChecked) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"kv_lora_rank":0})", "kv_lora_rank is 0"},
      {R"({"kv_lora_rank":null})", "kv_lora_rank is missing"},
      {R"({"kv_lora_rank":1000000})", "kv_lora_rank is 1000000"},
      {R"({"q_lora_rank":-1})", "q_lora_rank is -1"},
      {R"({"qk_nope_head_dim":0})", "qk_nope_head_dim is 0"},
      {R"({"qk_rope_head_dim":7})", "rope dimensions are 7, expected an even number"},
      {R"({"qk_rope_head_dim":4096})", "qk_rope_head_dim is 4096"},
      {R"({"v_head_dim":0})", "v_head_dim is 0"},
      {R"({"n_routed_experts":100000})", "n_routed_experts is 100000"},
      {R"({"n_routed_experts":4096,"num_hidden_layers":1024})", "4096 experts in 1024 layers"},
      {R"({"num_experts_per_tok":0})", "num_experts_per_tok is 0"},
      {R"({"num_experts_per_tok":5})", "5 experts, but its 2 groups hold 4"},
      {R"({"moe_intermediate_size":0})", "moe_intermediate_size is 0"},
      {R"({"n_shared_experts":1000})", "n_shared_experts is 1000"},
      {R"({"first_k_dense_replace":-1})", "first_k_dense_replace is -1"},
      {R"({"moe_layer_freq":0})", "moe_layer_freq is 0"},
      {R"({"routed_scaling_factor":0})", "routed_scaling_factor is 0"},
      {R"({"norm_topk_prob":1})", "norm_topk_prob is 1, expected true or false"},
      {R"({"scoring_func":"tanh"})", "scoring_func is \"tanh\"; supported: softmax, sigmoid"},
      {R"({"topk_method":"best"})", "topk_method is \"best\"; supported: greedy"},
      {R"({"n_group":3})", "8 experts do not divide into 3 groups"},
      {R"({"n_group":null})", "n_group is missing"},
      {R"({"topk_group":5})", "chooses from 5 groups, there are 4"},
      {R"({"n_group":8})", "groups of one expert have no two best"},
      {R"({"num_nextn_predict_layers":-1})", "num_nextn_predict_layers is -1"},
      {R"({"rope_interleave":"yes"})", "rope_interleave is \"yes\""},
  };
  for (const auto& [members, expected] : kCases) {
    const Result<ModelConfig> c = changed_golden("deepseek_v3", members);
    EXPECT_FALSE(c.ok()) << members;
    EXPECT_THAT(c.status().message(), AllOf(HasSubstr("config.json"), HasSubstr(expected)));
  }
}

TEST(DeepseekConfig, DenseAndSpacedLayers) {
  const Result<ModelConfig> dense = changed_golden("deepseek_v2", R"({"n_routed_experts":0})");
  ASSERT_TRUE(dense.ok()) << dense.status().to_string();
  EXPECT_EQ(dense->moe, MoeConfig());
  EXPECT_FALSE(dense->moe.is_moe(2));
  const Result<ModelConfig> spaced =
      changed_golden("deepseek_v2", R"({"moe_layer_freq":2,"num_hidden_layers":6})");
  ASSERT_TRUE(spaced.ok());
  std::vector<bool> moe;
  for (int32_t i = 0; i < 6; ++i) moe.push_back(spaced->moe.is_moe(i));
  EXPECT_THAT(moe, ElementsAre(false, false, true, false, true, false));
  // One group is none, whatever the method's name.
  const Result<ModelConfig> one = changed_golden("deepseek_v3", R"({"n_group":1,"topk_group":1})");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->moe.num_groups, 1);
  EXPECT_FALSE(one->moe.group_top2);
  EXPECT_TRUE(one->moe.correction_bias);
}

// Experts of one 3-D tensor are found one by one, under the names that safetensors has.
TEST(DeepseekWeights, GgufTensorsAreThoseOfSafetensors) {
  for (const char* name : {"deepseek_v2", "deepseek_v3"}) {
    const LoadedModel hf = open_golden(name), gguf = open_golden(std::string(name) + ".gguf");
    for (const std::string& tensor : hf.weights->names()) {
      if (tensor.find("kv_b_proj") != std::string::npos && gguf.config.mla.split_kv_b) continue;
      if (tensor.starts_with("model.layers.3.")) continue;
      EXPECT_EQ(tensor_values(*hf.weights, tensor), tensor_values(*gguf.weights, tensor)) << tensor;
    }
    EXPECT_EQ(hf.parameters, gguf.parameters);
  }
}

// A GGUF file of one tensor, [experts, rows, inputs] floats that count up.
std::unique_ptr<WeightSource> one_tensor(const std::string& name, const std::vector<uint64_t>& ne,
                                         std::string& storage) {
  GgufBytes bytes(1, 1);
  bytes.text("general.architecture", "deepseek2").tensor(name, ne, 0, 0);
  size_t count = 1;
  for (uint64_t n : ne) count *= n;
  bytes.data(0);
  for (size_t i = 0; i < count; ++i) bytes.put(static_cast<float>(i));
  storage = std::move(bytes.bytes);
  Result<GgufFile> file = GgufFile::parse(
      {reinterpret_cast<const std::byte*>(storage.data()), storage.size()}, "f.gguf");
  EXPECT_TRUE(file.ok()) << file.status().to_string();
  return gguf_weights(std::make_shared<const GgufFile>(std::move(file).value()));
}

TEST(DeepseekWeights, GateAndUpInOneTensor) {
  std::string storage;
  const auto weights = one_tensor("blk.1.ffn_gate_up_exps.weight", {2, 4, 3}, storage);
  EXPECT_EQ(weights->names().size(), 6u);
  EXPECT_THAT(tensor_values(*weights, "model.layers.1.mlp.experts.0.gate_proj.weight"),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(tensor_values(*weights, "model.layers.1.mlp.experts.2.up_proj.weight"),
              ElementsAre(20, 21, 22, 23));
}

// What is not shaped like experts keeps its name and is refused later, by it.
TEST(DeepseekWeights, MisshapenExpertsKeepTheirName) {
  std::string storage;
  for (const std::vector<uint64_t>& ne :
       {std::vector<uint64_t>{6}, std::vector<uint64_t>{2, 3}, std::vector<uint64_t>{2, 1, 5000},
        std::vector<uint64_t>{2, 3, 2}}) {
    const auto weights = one_tensor("blk.1.ffn_gate_up_exps.weight", ne, storage);
    EXPECT_THAT(weights->names(), ElementsAre("blk.1.ffn_gate_up_exps.weight"));
  }
}

TEST(DeepseekWeights, MissingExpertIsNamed) {
  const LoadedModel model = open_golden("deepseek_v2");
  ModelConfig config = model.config;
  config.moe.num_experts = 9;
  const Status status = check_weights(expected_tensors(config), *model.weights);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("mlp.experts.8.gate_proj.weight"),
                                      HasSubstr("mlp.gate.weight is [8, 64], expected [9, 64]")));
}

// Layers behind the last are a drafter's; more of them than the config says are refused.
TEST(DeepseekWeights, LayersForADrafterAreNotRead) {
  const LoadedModel model = open_golden("deepseek_v3");
  EXPECT_TRUE(model.weights->find("model.layers.3.eh_proj.weight").has_value());
  ModelConfig config = model.config;
  config.num_nextn_layers = 0;
  const Status status = check_weights(expected_tensors(config), *model.weights);
  EXPECT_THAT(status.message(), HasSubstr("model.layers.3.eh_proj.weight"));
}

TEST(DeepseekWeights, DummyWeightsHaveEveryTensor) {
  const Result<LoadedModel> dummy = open_model(golden_family("deepseek_v3"), "dummy", 1);
  ASSERT_TRUE(dummy.ok()) << dummy.status().to_string();
  EXPECT_EQ(dummy->parameters, open_golden("deepseek_v3").parameters);
  EXPECT_TRUE(dummy->weights->find("model.layers.2.mlp.experts.7.down_proj.weight").has_value());
}

}  // namespace
}  // namespace attune::formats
