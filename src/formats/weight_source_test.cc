#include "formats/weight_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "formats/dequant.h"
#include "formats/test_families.h"
#include "formats/test_files.h"

namespace attune::formats {
namespace {

using tensor::DType;
using tensor::Shape;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal(const std::string& path, std::string_view format = "auto") {
  const Result<LoadedModel> model = open_model(path, format, 0);
  EXPECT_FALSE(model.ok()) << path;
  return model.status().message();
}

TEST(OpenModel, EveryFamilyAndFormat) {
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "llama.gguf", "llama_freqs.gguf",
                           "qwen2.gguf", "qwen3.gguf"}) {
    SCOPED_TRACE(name);
    const Result<LoadedModel> model = open_model(golden(std::string("models/") + name), "auto", 0);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    EXPECT_TRUE(check_weights(expected_tensors(model->config), *model->weights).ok());
    EXPECT_TRUE(model->weights->check_intact().ok());
    const bool gguf = std::string_view(name).ends_with(".gguf");
    EXPECT_EQ(model->gguf != nullptr, gguf);
    EXPECT_EQ(model->folder.empty(), gguf);
    EXPECT_EQ(model->name, gguf ? std::string(name, strlen(name) - 5) : name);
    EXPECT_EQ(model->weight_format, gguf ? "q4_1" : "bfloat16");
    EXPECT_GT(model->parameters, 1000);
  }
}

TEST(OpenModel, GgufNamesAreMapped) {
  const Result<LoadedModel> model = open_model(golden("models/qwen3.gguf"), "gguf", 0);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const WeightSource& weights = *model->weights;
  EXPECT_EQ(weights.find("model.layers.0.mlp.down_proj.weight")->shape, (Shape{32, 64}));
  EXPECT_EQ(weights.find("model.layers.0.self_attn.k_norm.weight")->shape, (Shape{8}));
  EXPECT_EQ(weights.find("model.layers.0.self_attn.q_proj.weight")->dtype, DType::kQ4_1);
  EXPECT_EQ(weights.find("blk.0.attn_q.weight"), std::nullopt);
  EXPECT_EQ(weights.find("model.layers.1.self_attn.q_proj.weight"), std::nullopt);
  int64_t bytes = 0;
  for (const std::string& name : weights.names()) {
    const auto view = weights.find(name);
    ASSERT_TRUE(view) << name;
    bytes += view->bytes();
    weights.drop(*view);
  }
  EXPECT_EQ(bytes, weights.bytes());
}

TEST(OpenModel, DroppedWeightsStayReadable) {
  const Result<LoadedModel> model = open_model(golden("models/mistral"), "safetensors", 0);
  ASSERT_TRUE(model.ok());
  const auto view = *model->weights->find("model.embed_tokens.weight");
  const std::string before(static_cast<const char*>(view.data), size_t(view.bytes()));
  model->weights->drop(view);
  EXPECT_EQ(std::memcmp(view.data, before.data(), before.size()), 0);
}

TEST(OpenModel, SaysWhatItNeeds) {
  const TempFolder folder;
  EXPECT_THAT(refusal(folder.path() + "/none"), HasSubstr("no such model file or folder"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("no config.json, no *.safetensors and 0 *.gguf"));
  EXPECT_THAT(refusal(golden("models/llama"), "pickle"),
              HasSubstr("\"pickle\"; supported: auto, gguf, safetensors, dummy"));
  EXPECT_THAT(refusal(golden("models/llama"), "gguf"), HasSubstr("for load format gguf"));
  EXPECT_THAT(refusal(golden("models/llama.gguf"), "safetensors"), HasSubstr("needs a folder"));
  EXPECT_THAT(refusal("some-org/Model-1.5B"), HasSubstr("nothing is downloaded from a hub"));
  EXPECT_THAT(refusal(golden("models/llama/config.json")),
              HasSubstr("only with load format dummy"));
  folder.write("config.json", "{");
  EXPECT_THAT(refusal(folder.path()),
              AllOf(HasSubstr("config.json: JSON"), HasSubstr("at byte 1")));
  folder.write("config.json", read_file(golden("models/llama/config.json")));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("no model.safetensors"));
  folder.write("generation_config.json", "[]");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("generation_config.json: not an object"));
  const TempFolder one;
  one.write("m.gguf", read_file(golden("models/llama.gguf")));
  EXPECT_TRUE(open_model(one.path(), "auto", 0).ok());
}

TEST(OpenModel, AFileInAFolderStandsForWhatIsThere) {
  const TempFolder folder;
  const std::string gguf = folder.write("m.gguf", read_file(golden("models/llama.gguf")));
  const Result<ModelLocation> alone = locate_model(folder.path(), "auto");
  ASSERT_TRUE(alone.ok()) << alone.status().to_string();
  EXPECT_EQ(alone->text(), gguf);
  const Result<LoadedModel> model = open_model(folder.path(), "auto", 0);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->name, "m");
  folder.write("n.gguf", "");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("and 2 *.gguf"));

  const std::string hf = golden("models/mistral");
  const Result<ModelLocation> shard = locate_model(hf + "/model.safetensors", "auto");
  ASSERT_TRUE(shard.ok()) << shard.status().to_string();
  EXPECT_EQ(shard->text(), hf);
  EXPECT_TRUE(open_model(hf + "/model.safetensors", "auto", 0).ok());
}

TEST(OpenModel, SplitGgufIsRefused) {
  const TempFolder folder;
  GgufBytes file(0, 2);
  file.text("general.architecture", "llama").key("split.count", 2).put(uint16_t{3});
  EXPECT_THAT(refusal(folder.write("m.gguf", file.bytes)), HasSubstr("one of 3 parts"));
}

TEST(OpenModel, FamiliesComeFromTheCaller) {
  const FamilyTraits only_qwen[] = {kTestFamilies[2]};
  const Result<LoadedModel> model = open_model(golden("models/llama"), "auto", 0, only_qwen);
  EXPECT_EQ(model.status().code(), Code::kUnsupported);
  EXPECT_THAT(model.status().message(),
              HasSubstr("\"LlamaForCausalLM\"; supported: Qwen2ForCausalLM"));
}

// The golden model of `family` with one member of its config changed.
struct Changed {
  TempFolder folder;
  Changed(const std::string& family, const char* key, Json value) {
    folder.copy_from(golden("models/" + family));
    Json config = *parse_json(read_file(folder.path() + "/config.json"));
    config.set(key, std::move(value));
    folder.write("config.json", config.dump());
  }
};

TEST(BugJ02, MissingHeadIsRefusedUnlessTied) {
  const Changed untied("qwen2", "tie_word_embeddings", false);  // its file has no head
  EXPECT_THAT(refusal(untied.folder.path()),
              AllOf(HasSubstr("missing: lm_head.weight"), HasSubstr("tie_word_embeddings")));
  EXPECT_TRUE(open_model(golden("models/qwen2"), "auto", 0).ok());  // tied, no head
  const Changed tied("mistral", "tie_word_embeddings", true);       // tied, with a head
  const Result<LoadedModel> model = open_model(tied.folder.path(), "auto", 0);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_TRUE(model->config.tie_word_embeddings);
  EXPECT_TRUE(open_model(golden("models/mistral"), "auto", 0).ok());  // untied, with a head
}

TEST(BugJ02, MissingAndExtraTensorsAreListed) {
  const Changed deeper("mistral", "num_hidden_layers", 4);
  EXPECT_THAT(
      refusal(deeper.folder.path()),
      AllOf(HasSubstr("missing: model.layers.2.input_layernorm.weight"), HasSubstr("and 8 more")));
  const Changed shallower("mistral", "num_hidden_layers", 1);
  EXPECT_THAT(refusal(shallower.folder.path()),
              AllOf(HasSubstr("not part of the architecture"), HasSubstr("model.layers.1."),
                    Not(HasSubstr("missing"))));
  const Changed wider("mistral", "intermediate_size", 40);
  EXPECT_THAT(refusal(wider.folder.path()),
              HasSubstr("mlp.gate_proj.weight is [32, 16], expected [40, 16]"));
}

TEST(BugJ11, OptionalTensorsAreDeclaredAndOthersNamed) {
  const Result<LoadedModel> with = open_model(golden("models/llama_freqs.gguf"), "auto", 0);
  const Result<LoadedModel> without = open_model(golden("models/qwen2.gguf"), "auto", 0);
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ(with->config.rope.freq_factors.size(), 4u);
  std::vector<TensorSpec> specs = expected_tensors(with->config);
  std::erase_if(specs, [](const TensorSpec& s) { return s.name == "rope_freqs.weight"; });
  EXPECT_THAT(check_weights(specs, *with->weights).message(), HasSubstr("\"rope_freqs.weight\""));
}

TEST(DummyWeights, DeterministicAndScaled) {
  const std::string path = golden("models/qwen3/config.json");
  const Result<LoadedModel> a = open_model(path, "dummy", 7), b = open_model(path, "dummy", 7),
                            c = open_model(path, "dummy", 8);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok()) << a.status().to_string();
  EXPECT_EQ(a->weight_format, "bfloat16");
  const auto values = [](const LoadedModel& model, const char* name) {
    const auto view = model.weights->find(name);
    std::vector<float> out(size_t(view->shape.elems()));
    EXPECT_TRUE(dequantize(view->dtype, view->data, out).ok());
    return out;
  };
  const char* kName = "model.layers.1.mlp.up_proj.weight";
  EXPECT_EQ(values(*a, kName), values(*b, kName));
  EXPECT_NE(values(*a, kName), values(*c, kName));
  EXPECT_NE(values(*a, kName), values(*a, "model.layers.0.mlp.up_proj.weight"));
  std::vector<float> first_four = values(*a, kName);
  first_four.resize(4);
  // The same on every machine: computed apart from SplitMix64 and FNV-1a.
  EXPECT_THAT(first_four, ::testing::ElementsAre(-0.01513671875f, 0.0341796875f, 0.01275634765625f,
                                                 -0.032958984375f));
  double sum = 0, squares = 0;
  const std::vector<float> all = values(*a, "model.embed_tokens.weight");
  for (float v : all) sum += v, squares += double(v) * v;
  EXPECT_NEAR(sum / double(all.size()), 0, 0.003);
  EXPECT_NEAR(std::sqrt(squares / double(all.size())), 0.02, 0.002);
  EXPECT_THAT(values(*a, "model.norm.weight"), ::testing::Each(1.0f));
  EXPECT_THAT(values(*a, "model.layers.0.self_attn.q_norm.weight"), ::testing::Each(1.0f));
}

TEST(DummyWeights, TooLargeForTheMachineIsRefused) {
  const TempFolder folder;
  Json config = *parse_json(read_file(golden("models/llama/config.json")));
  config.set("hidden_size", 1 << 17);
  config.set("intermediate_size", 1 << 19);
  config.set("num_hidden_layers", 1000);
  config.set("head_dim", 1 << 10);
  folder.write("config.json", config.dump());
  const Result<LoadedModel> model = open_model(folder.path(), "dummy", 0);
  EXPECT_EQ(model.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(model.status().message(), HasSubstr("this machine has"));
}

}  // namespace
}  // namespace attune::formats
