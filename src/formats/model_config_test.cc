#include "formats/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "formats/gguf.h"
#include "formats/test_families.h"
#include "formats/test_files.h"

namespace attune::formats {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json json_of(const std::string& path) {
  Result<Json> json = parse_json(read_file(path));
  EXPECT_TRUE(json.ok()) << path << ": " << json.status().to_string();
  return json.ok() ? *json : Json();
}

ModelConfig golden_config(const std::string& family) {
  const Json config = json_of(golden("models/" + family + "/config.json"));
  const Json generation = json_of(golden("models/" + family + "/generation_config.json"));
  const Result<ModelConfig> result = model_config_from_hf(config, &generation);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? *result : ModelConfig();
}

TEST(ModelConfigHf, Llama) {
  const ModelConfig c = golden_config("llama");
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.vocab_size, 48);
  EXPECT_EQ(c.hidden_size, 16);
  EXPECT_EQ(c.intermediate_size, 32);
  EXPECT_EQ(c.num_layers, 2);
  EXPECT_EQ(c.num_heads, 4);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 4);
  EXPECT_EQ(c.v_head_dim, 4);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope.style, RopeStyle::kHalf);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(c.rope.theta, 500000.0);
  EXPECT_EQ(c.rope.dim, 4);
  EXPECT_EQ(c.rope.factor, 8.0);
  EXPECT_EQ(c.rope.original_max_positions, 16);
  EXPECT_EQ(c.max_model_len, 64);
  EXPECT_FALSE(c.tie_word_embeddings || c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
  EXPECT_THAT(c.windows, ElementsAre(0, 0));
  EXPECT_EQ(c.attention_scale, 0.5);
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.pad_token_id, 0);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(c.dtype, tensor::DType::kBF16);
  EXPECT_EQ(c.sampling, SamplingDefaults());
}

TEST(ModelConfigHf, FamiliesDiffer) {
  EXPECT_THAT(golden_config("mistral").windows, ElementsAre(8, 8));
  const ModelConfig qwen2 = golden_config("qwen2");
  EXPECT_TRUE(qwen2.qkv_bias && qwen2.tie_word_embeddings);
  EXPECT_FALSE(qwen2.o_bias || qwen2.qk_norm);
  EXPECT_THAT(qwen2.windows, Each(0));
  const ModelConfig qwen3 = golden_config("qwen3");
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 8);
  EXPECT_THAT(qwen3.eos_token_ids, ElementsAre(2, 3));
  EXPECT_EQ(qwen3.sampling.temperature, 0.6f);
  EXPECT_EQ(qwen3.sampling.top_p, 0.95f);
  EXPECT_EQ(qwen3.sampling.top_k, 20);
  EXPECT_EQ(qwen3.sampling.min_p, std::nullopt);
}

// golden config of `family`, with members replaced; a null value removes one.
Status changed(const std::string& family, const char* members, ModelConfig* out = nullptr) {
  Json config = json_of(golden("models/" + family + "/config.json"));
  const Result<Json> changes = parse_json(members);
  EXPECT_TRUE(changes.ok()) << members;
  for (const auto& [key, value] : changes->as_object()) config.set(key, value);
  const Result<ModelConfig> result = model_config_from_hf(config, nullptr);
  if (result.ok() && out != nullptr) *out = *result;
  return result.status();
}

TEST(ModelConfigHf, EveryFieldIsChecked) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"vocab_size":0})", "vocab_size is 0, expected an integer from 1 to"},
      {R"({"vocab_size":99999999999})", "vocab_size is 99999999999"},
      {R"({"vocab_size":null})", "vocab_size is missing"},
      {R"({"hidden_size":-16})", "hidden_size is -16"},
      {R"({"hidden_size":"16"})", "hidden_size is \"16\""},
      {R"({"hidden_size":16.5})", "hidden_size is 16.5"},
      {R"({"intermediate_size":2147483648})", "intermediate_size"},
      {R"({"num_hidden_layers":0})", "num_hidden_layers"},
      {R"({"num_hidden_layers":1000000})", "num_hidden_layers"},
      {R"({"num_attention_heads":0})", "num_attention_heads"},
      {R"({"num_key_value_heads":0})", "num_key_value_heads"},
      {R"({"num_key_value_heads":3})", "4 attention heads do not divide into 3 kv heads"},
      {R"({"head_dim":0})", "head_dim"},
      {R"({"head_dim":5})", "rope dimensions are 5, expected an even number"},
      {R"({"head_dim":null,"num_attention_heads":6,"num_key_value_heads":2})",
       "hidden size 16 does not divide into 6 heads"},
      {R"({"rms_norm_eps":-1})", "rms_norm_eps"},
      {R"({"rms_norm_eps":"x"})", "rms_norm_eps is \"x\""},
      {R"({"max_position_embeddings":0})", "max_position_embeddings"},
      {R"({"rope_parameters":5})", "rope_parameters is 5, expected an object"},
      {R"({"rope_parameters":{"rope_theta":0}})", "rope_parameters: rope_theta is 0"},
      {R"({"rope_parameters":{"rope_type":"longrope"}})", "rope_type is \"longrope\"; supported"},
      {R"({"rope_parameters":{"rope_type":"linear"}})", "factor is missing"},
      {R"({"rope_parameters":{"rope_type":"linear","factor":0.5}})", "factor is 0.5"},
      {R"({"rope_parameters":{"rope_type":"llama3","factor":8}})",
       "llama3 needs original_max_position_embeddings"},
      {R"({"rope_parameters":{"rope_type":"llama3","factor":8,"low_freq_factor":4,
           "high_freq_factor":4,"original_max_position_embeddings":16}})",
       "high_freq_factor above low_freq_factor"},
      {R"({"rope_parameters":{"rope_type":"yarn","factor":8,"beta_fast":1}})",
       "beta_fast above beta_slow"},
      {R"({"rope_parameters":{"rope_type":5}})", "rope_type is 5, expected a string"},
      {R"({"partial_rotary_factor":0.3})", "rope dimensions are 1"},
      {R"({"hidden_act":"gelu"})", "hidden_act is \"gelu\"; supported: silu"},
      {R"({"attention_bias":"yes"})", "attention_bias is \"yes\", expected true or false"},
      {R"({"tie_word_embeddings":1})", "tie_word_embeddings is 1"},
      {R"({"dtype":"int8"})", "\"int8\"; supported: float32, float16, bfloat16"},
      {R"({"quantization_config":{"quant_method":"gptq"}})", "quantization_config"},
      {R"({"bos_token_id":48})", "bos_token_id 48 is outside the vocabulary of 48"},
      {R"({"eos_token_id":[2,99]})", "eos_token_id 99 is outside"},
      {R"({"eos_token_id":"</s>"})", "eos_token_id is \"</s>\", expected a token id"},
      {R"({"eos_token_id":-7})", "eos_token_id is -7"},
      {R"({"architectures":["LlamaForSequenceClassification"]})",
       "\"LlamaForSequenceClassification\"; supported: LlamaForCausalLM, MistralForCausalLM"},
      {R"({"architectures":[]})", "architectures is an array"},
      {R"({"architectures":null,"model_type":"gemma3"})",
       "\"gemma3\"; supported: llama, mistral, qwen2, qwen3"},
  };
  for (const auto& [members, expected] : kCases) {
    const Status status = changed("llama", members);
    EXPECT_FALSE(status.ok()) << members;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("config.json"), HasSubstr(expected)));
  }
  EXPECT_FALSE(model_config_from_hf(Json(3), nullptr).ok());
}

TEST(ModelConfigHf, OptionalFields) {
  ModelConfig c;
  ASSERT_TRUE(changed("llama", R"({"num_key_value_heads":null,"head_dim":null,"attention_bias":true,
      "mlp_bias":true,"pad_token_id":-1,"bos_token_id":null,"eos_token_id":null,
      "architectures":null,"dtype":null,"torch_dtype":"float16"})",
                      &c)
                  .ok());
  EXPECT_EQ(c.num_kv_heads, 4);
  EXPECT_EQ(c.head_dim, 4);
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.mlp_bias);
  EXPECT_EQ(c.pad_token_id, -1);
  EXPECT_EQ(c.bos_token_id, -1);
  EXPECT_TRUE(c.eos_token_ids.empty());
  EXPECT_EQ(c.dtype, tensor::DType::kF16);
}

TEST(ModelConfigHf, SlidingWindows) {
  const auto windows = [](const char* family, const char* members) {
    ModelConfig c;
    const Status status = changed(family, members, &c);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return c.windows;
  };
  EXPECT_THAT(windows("mistral", R"({"sliding_window":null})"), ElementsAre(0, 0));
  EXPECT_THAT(windows("llama", R"({"sliding_window":8})"), ElementsAre(0, 0));
  EXPECT_THAT(windows("qwen2", R"({"sliding_window":8,"use_sliding_window":false})"), Each(0));
  EXPECT_THAT(windows("qwen2", R"({"sliding_window":8,"use_sliding_window":true,"layer_types":null,
                                   "max_window_layers":1})"),
              ElementsAre(0, 8));
  EXPECT_THAT(windows("qwen3", R"({"sliding_window":8,"use_sliding_window":true,
      "layer_types":["sliding_attention","full_attention"]})"),
              ElementsAre(8, 0));
  EXPECT_THAT(changed("qwen3", R"({"sliding_window":8,"use_sliding_window":true,
      "layer_types":["sliding_attention"]})")
                  .message(),
              HasSubstr("one entry per hidden layer"));
  EXPECT_FALSE(changed("qwen3", R"({"sliding_window":8,"use_sliding_window":true,
      "layer_types":["sliding_attention","chunked_attention"]})")
                   .ok());
  EXPECT_FALSE(changed("mistral", R"({"sliding_window":0})").ok());
  Json config = json_of(golden("models/mistral/config.json"));
  std::erase_if(config.as_object(), [](const auto& m) { return m.first == "sliding_window"; });
  EXPECT_THAT(model_config_from_hf(config, nullptr)->windows, Each(4096));
}

TEST(ModelConfigHf, SamplingDefaultsAreChecked) {
  const Json config = json_of(golden("models/llama/config.json"));
  for (const char* bad : {R"({"temperature":-1})", R"({"top_p":0})", R"({"top_p":1.5})",
                          R"({"top_k":-5})", R"({"min_p":2})", R"({"eos_token_id":500})"}) {
    const Json generation = *parse_json(bad);
    EXPECT_FALSE(model_config_from_hf(config, &generation).ok()) << bad;
  }
  const Json generation = *parse_json(R"({"top_k":0,"temperature":null,"repetition_penalty":1.1})");
  const Result<ModelConfig> c = model_config_from_hf(config, &generation);
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->sampling.top_k, -1);
  EXPECT_EQ(c->sampling.temperature, std::nullopt);
  EXPECT_EQ(c->sampling.repetition_penalty, 1.1f);
}

// Frequencies: transformers; limits: the models' cards (tools/golden_formats_rope.py).
void check_rope_table(const std::function<bool(const std::string&)>& wanted) {
  const Json table = json_of(golden("rope.json"));
  int checked = 0;
  for (const Json& item : table.find("cases")->as_array()) {
    const std::string& name = item.find("name")->as_string();
    if (!wanted(name)) continue;
    SCOPED_TRACE(name);
    ++checked;
    const Result<ModelConfig> c = model_config_from_hf(*item.find("config"), nullptr);
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    EXPECT_EQ(c->max_model_len, item.find("max_model_len")->as_int());
    EXPECT_NEAR(c->rope.attention_factor, item.find("attention_factor")->as_double(), 1e-9);
    const std::vector<double> freqs = inverse_frequencies(c->rope);
    const Json::Array& expected = item.find("inv_freq")->as_array();
    ASSERT_EQ(freqs.size(), expected.size());
    for (size_t i = 0; i < freqs.size(); ++i)  // transformers computes in float32
      EXPECT_NEAR(freqs[i] / expected[i].as_double(), 1.0, 3e-6) << i;
  }
  EXPECT_GT(checked, 0);
}

TEST(BugJ12, YarnFactorIsAppliedOnce) {
  check_rope_table(
      [](const std::string& name) { return name.find("qwen2.5") == std::string::npos; });
  ModelConfig c;  // an alias of the type changes nothing
  ASSERT_TRUE(changed("llama", R"({"max_position_embeddings":163840,"rope_parameters":
      {"rope_type":"deepseek_yarn","factor":40,"original_max_position_embeddings":4096}})",
                      &c)
                  .ok());
  EXPECT_EQ(c.max_model_len, 163840);
}

TEST(BugJ13, ScaledContextIsRecognisedInBothSpellings) {
  check_rope_table(
      [](const std::string& name) { return name.find("qwen2.5") != std::string::npos; });
}

TEST(ModelConfigGguf, Smallest) {
  const Result<GgufFile> g = GgufFile::open(golden("models/llama.gguf"));
  ASSERT_TRUE(g.ok()) << g.status().to_string();
  const Result<ModelConfig> c = model_config_from_gguf(*g);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->architecture, "llama");
  EXPECT_EQ(c->vocab_size, 40);
  EXPECT_EQ(c->hidden_size, 32);
  EXPECT_EQ(c->intermediate_size, 64);
  EXPECT_EQ(c->num_layers, 1);
  EXPECT_EQ(c->num_heads, 4);
  EXPECT_EQ(c->num_kv_heads, 2);
  EXPECT_EQ(c->head_dim, 8);
  EXPECT_EQ(c->rope.style, RopeStyle::kInterleaved);
  EXPECT_EQ(c->rope.dim, 8);
  EXPECT_EQ(c->max_model_len, 64);
  EXPECT_FALSE(c->tie_word_embeddings);
  EXPECT_NEAR(c->rms_norm_eps, 1e-6, 1e-12);
  EXPECT_EQ(c->bos_token_id, 1);
  EXPECT_THAT(c->eos_token_ids, ElementsAre(2, 3));
  EXPECT_THAT(c->windows, ElementsAre(0));
}

TEST(ModelConfigGguf, Qwen) {
  const Result<GgufFile> qwen2 = GgufFile::open(golden("models/qwen2.gguf"));
  const Result<GgufFile> qwen3 = GgufFile::open(golden("models/qwen3.gguf"));
  ASSERT_TRUE(qwen2.ok() && qwen3.ok());
  const Result<ModelConfig> c2 = model_config_from_gguf(*qwen2),
                            c3 = model_config_from_gguf(*qwen3);
  ASSERT_TRUE(c2.ok() && c3.ok());
  EXPECT_TRUE(c2->qkv_bias && c2->tie_word_embeddings && !c2->qk_norm);
  EXPECT_EQ(c2->rope.style, RopeStyle::kHalf);
  EXPECT_TRUE(c3->qk_norm && !c3->qkv_bias);
}

struct GgufLlama {
  GgufBytes file{0, 0};
  uint64_t entries = 0;
  GgufLlama& u32(const char* key, uint32_t value) { return ++entries, file.u32(key, value), *this; }
  GgufLlama& f32(const char* key, float value) {
    return ++entries, file.key(key, 6).put(value), *this;
  }
  GgufLlama& text(const char* key, const char* value) {
    return ++entries, file.text(key, value), *this;
  }
  Result<ModelConfig> config() {
    std::memcpy(file.bytes.data() + 16, &entries, 8);
    const Result<GgufFile> g = GgufFile::parse(file.span(), "f.gguf");
    EXPECT_TRUE(g.ok()) << g.status().to_string();
    return model_config_from_gguf(*g);
  }
};

// The sizes as given, or those of a small model.
GgufLlama small(uint32_t hidden = 64, uint32_t heads = 4, uint32_t kv_heads = 2,
                uint32_t layers = 3) {
  GgufLlama g;
  g.text("general.architecture", "llama").u32("llama.vocab_size", 100);
  g.u32("llama.embedding_length", hidden).u32("llama.feed_forward_length", 128);
  g.u32("llama.block_count", layers).u32("llama.context_length", 4096);
  g.u32("llama.attention.head_count", heads).u32("llama.attention.head_count_kv", kv_heads);
  return g;
}

TEST(ModelConfigGguf, EveryFieldIsChecked) {
  EXPECT_TRUE(small().config().ok());
  const auto message = [](GgufLlama g) { return g.config().status().message(); };
  EXPECT_THAT(message(small(0)), HasSubstr("llama.embedding_length is 0, expected 1 to"));
  EXPECT_THAT(message(small(1u << 30)), HasSubstr("llama.embedding_length"));
  EXPECT_THAT(message(small(64, 0)), HasSubstr("llama.attention.head_count is 0"));
  EXPECT_THAT(message(small(64, 4, 3)), HasSubstr("4 attention heads do not divide into 3"));
  EXPECT_THAT(message(small(65)), HasSubstr("does not divide into 4 heads"));
  EXPECT_THAT(message(small(64, 4, 2, 1u << 31)), HasSubstr("llama.block_count is 2147483648"));
  EXPECT_THAT(message(small().f32("llama.rope.freq_base", NAN)),
              HasSubstr("rope.freq_base is nan"));
  EXPECT_THAT(message(small().u32("llama.rope.dimension_count", 18)), HasSubstr("rope dimensions"));
  EXPECT_THAT(message(small().u32("llama.attention.key_length", 99999)), HasSubstr("key_length"));
  EXPECT_THAT(message(small().text("llama.rope.scaling.type", "su")),
              HasSubstr("\"su\"; supported"));
  EXPECT_THAT(message(small().u32("tokenizer.ggml.eos_token_id", 100)),
              HasSubstr("eos_token_id 100 is outside the vocabulary"));
  GgufLlama missing;
  missing.text("general.architecture", "llama");
  EXPECT_THAT(message(missing), HasSubstr("no llama.embedding_length"));
  GgufLlama other;
  other.text("general.architecture", "mamba");
  EXPECT_THAT(message(other), HasSubstr("\"mamba\"; supported: llama, mistral, qwen2, qwen3"));
}

TEST(ModelConfigGguf, RopeScaling) {
  const Result<ModelConfig> linear = small()
                                         .text("llama.rope.scaling.type", "linear")
                                         .f32("llama.rope.scaling.factor", 4)
                                         .config();
  ASSERT_TRUE(linear.ok()) << linear.status().to_string();
  EXPECT_EQ(linear->max_model_len, 16384);
  const Result<ModelConfig> yarn = small()
                                       .text("llama.rope.scaling.type", "yarn")
                                       .f32("llama.rope.scaling.factor", 4)
                                       .u32("llama.rope.scaling.original_context_length", 4096)
                                       .config();
  ASSERT_TRUE(yarn.ok()) << yarn.status().to_string();
  EXPECT_EQ(yarn->max_model_len, 16384);
  EXPECT_NEAR(yarn->rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-9);
  const Result<ModelConfig> window = small().u32("llama.attention.sliding_window", 512).config();
  EXPECT_THAT(window->windows, ElementsAre(512, 512, 512));
}

TEST(BugJ11, FrequencyFactorsAreOptional) {
  const Result<GgufFile> with = GgufFile::open(golden("models/llama_freqs.gguf"));
  ASSERT_TRUE(with.ok());
  const Result<ModelConfig> c = model_config_from_gguf(*with);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  ASSERT_EQ(c->rope.freq_factors.size(), 4u);
  EXPECT_EQ(c->rope.freq_factors[3], 8.0f);
  const std::vector<double> freqs = inverse_frequencies(c->rope);
  EXPECT_EQ(freqs[0], 1.0);
  EXPECT_NEAR(freqs[3], std::pow(10000.0, -6.0 / 8) / 8, 1e-12);
  GgufLlama wrong = small();
  uint64_t one = 1;
  std::memcpy(wrong.file.bytes.data() + 8, &one, 8);
  wrong.file.tensor("rope_freqs.weight", {5}, 0, 0).data(20);
  EXPECT_THAT(wrong.config().status().message(),
              HasSubstr("rope_freqs.weight is float32 [5], expected float32 [8]"));
}

}  // namespace
}  // namespace attune::formats
