// Configs and files of the Qwen3-MoE family (tools/golden_qwen3_moe.py).
#include <gmock/gmock.h>

#include "formats/test_golden.h"

namespace attune::formats {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Qwen3MoeConfig, ExpertsInEveryLayer) {
  const ModelConfig c = open_golden("qwen3_moe").config;
  EXPECT_EQ(c.architecture, "qwen3_moe");
  EXPECT_TRUE(c.qk_norm);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias || c.tie_word_embeddings || c.has_mla());
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.rope.style, RopeStyle::kHalf);
  EXPECT_EQ(c.rope.theta, 1000000.0);
  EXPECT_THAT(c.windows, Each(0));
  EXPECT_EQ(c.moe, (MoeConfig{.num_experts = 8,
                              .layers = {true, true},
                              .experts_per_token = 3,
                              .intermediate_size = 32,
                              .normalize = true}));
}

TEST(Qwen3MoeConfig, DenseLayersBetween) {
  const ModelConfig c = open_golden("qwen3_moe_mixed").config;
  EXPECT_THAT(c.moe.layers, ElementsAre(false, false, false, true, false, true));
  EXPECT_FALSE(c.moe.normalize);
  EXPECT_TRUE(c.qkv_bias && c.o_bias);
  EXPECT_THAT(c.windows, ElementsAre(9, 9, 9, 9, 9, 9));
}

std::vector<bool> layers_of(const std::string& members) {
  const Result<ModelConfig> c = changed_golden("qwen3_moe_mixed", members);
  EXPECT_TRUE(c.ok()) << c.status().to_string();
  return c.ok() ? c->moe.layers : std::vector<bool>();
}

TEST(Qwen3MoeConfig, WhichLayersHaveExperts) {
  EXPECT_THAT(layers_of(R"({"decoder_sparse_step":null,"mlp_only_layers":null})"), Each(true));
  EXPECT_THAT(layers_of(R"({"decoder_sparse_step":1})"),
              ElementsAre(true, false, true, true, true, true));
  EXPECT_THAT(layers_of(R"({"decoder_sparse_step":3,"mlp_only_layers":[]})"),
              ElementsAre(false, false, true, false, false, true));
  EXPECT_THAT(layers_of(R"({"decoder_sparse_step":4,"mlp_only_layers":[0,5]})"),
              ElementsAre(false, false, false, true, false, false));
}

// Then nothing of experts is left, so that no one makes room for them.
TEST(Qwen3MoeConfig, AllLayersDense) {
  for (const char* members : {R"({"num_local_experts":0})", R"({"decoder_sparse_step":7})",
                              R"({"mlp_only_layers":[5,4,3,2,1,0]})"}) {
    const Result<ModelConfig> c = changed_golden("qwen3_moe_mixed", members);
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    EXPECT_EQ(c->moe, MoeConfig()) << members;
    EXPECT_FALSE(c->moe.is_moe(5));
  }
}

// Qwen3MoeConfig of transformers does not normalise unless told to; 5 renamed the experts' count.
TEST(Qwen3MoeConfig, DefaultsAndSpellings) {
  const Result<ModelConfig> c = changed_golden("qwen3_moe", R"({"norm_topk_prob":null})");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_FALSE(c->moe.normalize);
  const Result<ModelConfig> old =
      changed_golden("qwen3_moe", R"({"num_local_experts":null,"num_experts":8})");
  ASSERT_TRUE(old.ok()) << old.status().to_string();
  EXPECT_EQ(*old, open_golden("qwen3_moe").config);
  EXPECT_TRUE(changed_golden("qwen3_moe", R"({"num_experts":8})").ok());
}

TEST(Qwen3MoeConfig, EveryFieldIsChecked) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"num_local_experts":null})", "num_experts is missing"},
      {R"({"num_local_experts":-1})", "num_local_experts is -1"},
      {R"({"num_local_experts":null,"num_experts":5000})", "num_experts is 5000"},
      {R"({"num_experts":9})", "num_experts is 9 but num_local_experts 8"},
      {R"({"num_local_experts":4096,"num_hidden_layers":1024})", "4096 experts in 1024 layers"},
      {R"({"num_experts_per_tok":0})", "num_experts_per_tok is 0"},
      {R"({"num_experts_per_tok":null})", "num_experts_per_tok is missing"},
      {R"({"num_experts_per_tok":9})", "a token has 9 experts"},
      {R"({"moe_intermediate_size":0})", "moe_intermediate_size is 0"},
      {R"({"moe_intermediate_size":null})", "moe_intermediate_size is missing"},
      {R"({"norm_topk_prob":1})", "norm_topk_prob is 1, expected true or false"},
      {R"({"decoder_sparse_step":0})", "decoder_sparse_step is 0"},
      {R"({"decoder_sparse_step":1.5})", "decoder_sparse_step is 1.5"},
      {R"({"mlp_only_layers":1})", "mlp_only_layers is 1, expected a list of layers"},
      {R"({"mlp_only_layers":[0,2]})", "mlp_only_layers is 2, expected layers from 0 to 1"},
      {R"({"mlp_only_layers":[-1]})", "mlp_only_layers is -1"},
      {R"({"mlp_only_layers":["0"]})", "mlp_only_layers is \"0\""},
  };
  for (const auto& [members, expected] : kCases) {
    const Result<ModelConfig> c = changed_golden("qwen3_moe", members);
    EXPECT_FALSE(c.ok()) << members;
    EXPECT_THAT(c.status().message(), AllOf(HasSubstr("config.json"), HasSubstr(expected)));
  }
}

TEST(Qwen3MoeConfig, GgufSaysWhatConfigJsonSays) {
  const ModelConfig hf = open_golden("qwen3_moe").config;
  const ModelConfig gguf = open_golden("qwen3_moe.gguf").config;
  EXPECT_EQ(gguf.architecture, "qwen3_moe");
  EXPECT_EQ(gguf.moe, hf.moe);
  EXPECT_EQ(gguf.rope, hf.rope);
  EXPECT_EQ(gguf.windows, hf.windows);
  EXPECT_EQ(gguf.head_dim, hf.head_dim);
  EXPECT_EQ(gguf.intermediate_size, hf.intermediate_size);
  EXPECT_TRUE(gguf.qk_norm);
  EXPECT_FALSE(gguf.tie_word_embeddings);
}

// Metadata of a GGUF file without tensors, the keys of experts as given.
Result<ModelConfig> gguf_config(const std::vector<std::pair<const char*, uint32_t>>& keys,
                                const char* flag = nullptr) {
  GgufBytes bytes(0, 9 + keys.size() + (flag != nullptr ? 1 : 0));
  bytes.text("general.architecture", "qwen3moe").u32("qwen3moe.vocab_size", 96);
  bytes.u32("qwen3moe.embedding_length", 64).u32("qwen3moe.feed_forward_length", 96);
  bytes.u32("qwen3moe.block_count", 2).u32("qwen3moe.context_length", 128);
  bytes.u32("qwen3moe.attention.head_count", 4).u32("qwen3moe.attention.head_count_kv", 2);
  bytes.u32("qwen3moe.attention.key_length", 32);
  for (const auto& [key, value] : keys) bytes.u32(std::string("qwen3moe.") + key, value);
  if (flag != nullptr) bytes.key(flag, 7).put(uint8_t{0});  // false
  const Result<GgufFile> file = GgufFile::parse(bytes.span(), "f.gguf");
  EXPECT_TRUE(file.ok()) << file.status().to_string();
  return model_config_from_gguf(*file);
}

// llama.cpp writes no key for the weights' sum and always normalises; a file that has it is heard.
TEST(Qwen3MoeConfig, GgufWeightsSumToOne) {
  const std::vector<std::pair<const char*, uint32_t>> keys = {
      {"expert_count", 8}, {"expert_used_count", 3}, {"expert_feed_forward_length", 32}};
  const Result<ModelConfig> silent = gguf_config(keys);
  const Result<ModelConfig> said = gguf_config(keys, "qwen3moe.expert_weights_norm");
  ASSERT_TRUE(silent.ok() && said.ok()) << silent.status().to_string();
  EXPECT_TRUE(silent->moe.normalize);
  EXPECT_FALSE(said->moe.normalize);
}

TEST(Qwen3MoeConfig, EveryGgufKeyIsChecked) {
  const auto message = [](const std::vector<std::pair<const char*, uint32_t>>& keys) {
    return gguf_config(keys).status().message();
  };
  EXPECT_THAT(message({{"expert_count", 5000}}), HasSubstr("qwen3moe.expert_count is 5000"));
  EXPECT_THAT(message({{"expert_count", 8}}), HasSubstr("no qwen3moe.expert_used_count"));
  EXPECT_THAT(message({{"expert_count", 8}, {"expert_used_count", 0}}),
              HasSubstr("qwen3moe.expert_used_count is 0"));
  EXPECT_THAT(message({{"expert_count", 8}, {"expert_used_count", 3}}),
              HasSubstr("no qwen3moe.expert_feed_forward_length"));
  EXPECT_THAT(
      message({{"expert_count", 8}, {"expert_used_count", 9}, {"expert_feed_forward_length", 32}}),
      HasSubstr("a token has 9 experts"));
}

TEST(Qwen3MoeWeights, GgufTensorsAreThoseOfSafetensors) {
  const LoadedModel hf = open_golden("qwen3_moe"), gguf = open_golden("qwen3_moe.gguf");
  EXPECT_EQ(hf.weights->names().size(), gguf.weights->names().size());
  for (const std::string& tensor : hf.weights->names())
    EXPECT_EQ(tensor_values(*hf.weights, tensor), tensor_values(*gguf.weights, tensor)) << tensor;
  EXPECT_EQ(hf.parameters, gguf.parameters);
}

// Experts where the config says dense, and the other way round, are named.
TEST(Qwen3MoeWeights, LayersOfTheOtherKindAreRefused) {
  const LoadedModel model = open_golden("qwen3_moe_mixed");
  ModelConfig config = model.config;
  config.moe.layers[3] = false;
  EXPECT_THAT(check_weights(expected_tensors(config), *model.weights).message(),
              AllOf(HasSubstr("missing: model.layers.3.mlp.gate_proj.weight"),
                    HasSubstr("model.layers.3.mlp.experts.0.down_proj.weight")));
  config = model.config;
  config.moe.layers[0] = true;
  EXPECT_THAT(check_weights(expected_tensors(config), *model.weights).message(),
              AllOf(HasSubstr("missing: model.layers.0.mlp.gate.weight"),
                    HasSubstr("\"model.layers.0.mlp.gate_proj.weight\"")));
}

// The shape that benchmarks run: 30.5e9 parameters, of which none is made before it is asked for.
TEST(Qwen3MoeWeights, ReleasedShapeOpensWithDummyWeights) {
  const Result<LoadedModel> model =
      open_model(std::string(ATTUNE_SOURCE_DIR) + "/bench/models/qwen3-30b-a3b", "dummy", 0);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->parameters, 30532122624);
  EXPECT_EQ(model->weight_format, "bfloat16");
  const auto last = model->weights->find("model.layers.47.mlp.experts.127.down_proj.weight");
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->shape, (tensor::Shape{2048, 768}));
}

}  // namespace
}  // namespace attune::formats
