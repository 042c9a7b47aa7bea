#include "formats/fingerprint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <set>
#include <vector>

#include "formats/safetensors.h"
#include "formats/test_families.h"
#include "formats/test_files.h"

namespace attune::formats {
namespace {

std::string fingerprint(const LoadedModel& model, int threads = 2) {
  auto result = model_fingerprint(model, threads);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? *result : "";
}
std::string fingerprint_of(const std::string& path, std::string_view format = "auto",
                           uint64_t seed = 0) {
  const auto model = open_model(path, format, seed);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return model.ok() ? fingerprint(*model) : "";
}

// Weights that a test may change byte by byte.
class Patched final : public WeightSource {
 public:
  explicit Patched(const WeightSource& from) {
    for (const std::string& name : from.names()) {
      const auto view = *from.find(name);
      tensors_.push_back({name, view, {}});
      const char* data = static_cast<const char*>(view.data);
      tensors_.back().bytes.assign(data, data + view.bytes());
    }
  }
  std::optional<tensor::TensorView> find(std::string_view name) const override {
    for (const Tensor& t : tensors_)
      if (t.name == name) return tensor::TensorView{t.bytes.data(), t.view.dtype, t.view.shape};
    return std::nullopt;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const Tensor& t : tensors_) out.push_back(t.name);
    return out;
  }
  int64_t bytes() const override { return 0; }
  void drop(const tensor::TensorView&) const override {}
  Status check_intact() const override { return {}; }

  struct Tensor {
    std::string name;
    tensor::TensorView view;
    std::string bytes;
  };
  std::vector<Tensor> tensors_;
};

TEST(Fingerprint, IsTheSameForTheSameContent) {
  const std::string path = golden("models/llama.gguf"), a = fingerprint_of(path);
  EXPECT_EQ(a.size(), 32u);
  EXPECT_EQ(a.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(fingerprint_of(path), a);
  const TempFolder folder;  // neither the path nor the name counts
  EXPECT_EQ(fingerprint_of(folder.write("another-name.gguf", read_file(path))), a);
  const auto model = open_model(path, "auto", 0);
  for (int threads : {1, 2, 3, 16}) EXPECT_EQ(fingerprint(*model, threads), a);
  // Of this content, whatever process asks: computed once, written down here. It changes when the
  // golden file or what is hashed does; pages stored before are then of another model.
  EXPECT_EQ(a, "94e83a20f95dcf39fe5a48c7140c41cb");
}

TEST(Fingerprint, DiffersBetweenModels) {
  std::set<std::string> seen;
  const std::vector<std::string> models = {"llama",      "mistral",    "qwen2",
                                           "qwen3",      "llama.gguf", "llama_freqs.gguf",
                                           "qwen2.gguf", "qwen3.gguf"};
  for (const std::string& name : models) seen.insert(fingerprint_of(golden("models/" + name)));
  EXPECT_EQ(seen.size(), models.size());
}

TEST(Fingerprint, EveryByteOfEveryWeightCounts) {
  auto model = open_model(golden("models/qwen3"), "auto", 0);
  ASSERT_TRUE(model.ok());
  auto patched = std::make_unique<Patched>(*model->weights);
  Patched& weights = *patched;
  const std::string before = fingerprint(*model);
  model->weights = std::move(patched);
  EXPECT_EQ(fingerprint(*model), before);
  std::set<std::string> seen = {before};
  size_t changes = 1;
  for (Patched::Tensor& tensor : weights.tensors_)
    for (size_t at : {size_t{0}, tensor.bytes.size() / 2, tensor.bytes.size() - 1}) {
      tensor.bytes[at] = char(tensor.bytes[at] ^ 1);
      seen.insert(fingerprint(*model));
      tensor.bytes[at] = char(tensor.bytes[at] ^ 1);
      ++changes;
    }
  EXPECT_EQ(seen.size(), changes);
  EXPECT_EQ(fingerprint(*model), before);
}

TEST(Fingerprint, NamesTypesAndShapesCount) {
  auto model = open_model(golden("models/qwen3"), "auto", 0);
  auto patched = std::make_unique<Patched>(*model->weights);
  Patched::Tensor& tensor = patched->tensors_[1];
  model->weights = std::move(patched);
  std::set<std::string> seen = {fingerprint(*model)};
  tensor.name += "x";
  seen.insert(fingerprint(*model));
  ASSERT_EQ(tensor.view.dtype, tensor::DType::kBF16);
  tensor.view.dtype = tensor::DType::kF16;  // the same bytes mean something else
  seen.insert(fingerprint(*model));
  tensor.view.shape = {1, tensor.view.shape.elems()};
  seen.insert(fingerprint(*model));
  EXPECT_EQ(seen.size(), 4u);
}

// More than one piece of a tensor, the last one not whole.
TEST(Fingerprint, LargeTensorsAreReadToTheEnd) {
  auto model = open_model(golden("models/qwen3"), "auto", 0);
  auto patched = std::make_unique<Patched>(*model->weights);
  Patched::Tensor& tensor = patched->tensors_[0];
  const int64_t rows = (9 << 20) / 2 + 3;
  tensor.view = {nullptr, tensor::DType::kBF16, {rows}};
  tensor.bytes.assign(size_t(2 * rows), 'a');
  model->weights = std::move(patched);
  std::set<std::string> seen = {fingerprint(*model)};
  for (size_t at : {size_t{4 << 20} - 1, size_t{4 << 20}, size_t{8 << 20}, size_t(2 * rows) - 1}) {
    tensor.bytes[at] = 'b';
    seen.insert(fingerprint(*model));
    EXPECT_EQ(fingerprint(*model, 1), fingerprint(*model, 3));
    tensor.bytes[at] = 'a';
  }
  EXPECT_EQ(seen.size(), 5u);
}

// BugD22: a page of a model that differs in anything that makes other keys or values never matches.
TEST(BugD22, EveryFieldOfTheConfigThatMakesOtherPagesCounts) {
  auto model = open_model(golden("models/llama"), "auto", 0);
  ASSERT_TRUE(model.ok());
  const ModelConfig before = model->config;
  std::set<std::string> seen = {fingerprint(*model)};
  const std::vector<std::function<void(ModelConfig&)>> changes = {
      [](ModelConfig& c) { c.architecture = "mistral"; },
      [](ModelConfig& c) { ++c.num_heads; },
      [](ModelConfig& c) { ++c.num_kv_heads; },
      [](ModelConfig& c) { ++c.head_dim; },
      [](ModelConfig& c) { ++c.v_head_dim; },
      [](ModelConfig& c) { c.rms_norm_eps *= 2; },
      [](ModelConfig& c) { c.hidden_act = "gelu"; },
      [](ModelConfig& c) { c.mla.nope_dim = 1; },
      [](ModelConfig& c) { c.moe.routed_scale = 2; },
      [](ModelConfig& c) { c.moe.layers.push_back(true); },
      [](ModelConfig& c) { c.rope.theta *= 2; },
      [](ModelConfig& c) { c.rope.style = RopeStyle::kInterleaved; },
      [](ModelConfig& c) { c.rope.scaling = RopeScaling::kYarn; },
      [](ModelConfig& c) { c.rope.freq_factors = {1}; },
      [](ModelConfig& c) { c.windows[0] = 7; },
      [](ModelConfig& c) { c.qkv_bias = !c.qkv_bias; },
      [](ModelConfig& c) { c.qk_norm = !c.qk_norm; },
      [](ModelConfig& c) { c.attention_scale *= 2; },
      [](ModelConfig& c) { c.attn_logit_softcap = 30; }};
  for (const auto& change : changes) {
    model->config = before;
    change(model->config);
    seen.insert(fingerprint(*model));
  }
  EXPECT_EQ(seen.size(), changes.size() + 1);
  // What a server is told, and how it samples, makes no other page.
  model->config = before;
  model->config.max_model_len = 17;
  model->config.eos_token_ids = {1, 2, 3};
  model->config.sampling.temperature = 0.5f;
  EXPECT_TRUE(seen.contains(fingerprint(*model)));
}

// BugD28: two models with one name.
TEST(BugD28, TheDisplayNameIsNoIdentity) {
  auto a = open_model(golden("models/qwen2"), "auto", 0),
       b = open_model(golden("models/qwen3"), "auto", 0);
  ASSERT_TRUE(a.ok() && b.ok());
  const std::string other = fingerprint(*b);
  a->name = b->name = "model";
  a->path = b->path = "model";
  EXPECT_NE(fingerprint(*a), fingerprint(*b));
  EXPECT_EQ(fingerprint(*b), other);
}

// Which shard has which tensor, and in which order, is how a file was saved, not what it says.
TEST(Fingerprint, OtherShardsOfTheSameTensorsAreTheSameModel) {
  const std::string hf = golden("models/mistral");
  const auto model = SafetensorsModel::open(hf);
  ASSERT_TRUE(model.ok());
  const TempFolder folder;
  std::filesystem::copy(hf + "/config.json", folder.path());
  std::string index;
  for (const SafetensorsFile& file : model->shards()) {
    size_t n = 0;
    for (auto it = file.tensors().rbegin(); it != file.tensors().rend(); ++it, ++n) {
      Json shape{Json::Array{}};
      for (int i = 0; i < it->view.shape.rank; ++i) shape.push(it->view.shape[i]);
      std::string header = "{\"" + it->name + "\":{\"dtype\":\"BF16\",\"shape\":" + shape.dump() +
                           ",\"data_offsets\":[0," + std::to_string(it->view.bytes()) + "]}}";
      header.resize((header.size() + 7) / 8 * 8, ' ');
      std::string bytes = safetensors_bytes(header, 0);
      bytes.append(static_cast<const char*>(it->view.data), size_t(it->view.bytes()));
      const std::string name = "model-" + std::to_string(n) + ".safetensors";
      folder.write(name, bytes);
      index += (n ? ",\"" : "\"") + it->name + "\":\"" + name + "\"";
    }
  }
  folder.write("model.safetensors.index.json", "{\"weight_map\":{" + index + "}}");
  EXPECT_EQ(fingerprint_of(folder.path()), fingerprint_of(hf));
}

TEST(Fingerprint, DummyWeightsAreTheirConfigAndSeed) {
  const std::string path = golden("models/qwen3/config.json");
  EXPECT_EQ(fingerprint_of(path, "dummy", 7), fingerprint_of(path, "dummy", 7));
  EXPECT_NE(fingerprint_of(path, "dummy", 7), fingerprint_of(path, "dummy", 8));
  EXPECT_NE(fingerprint_of(path, "dummy", 7),
            fingerprint_of(golden("models/qwen2/config.json"), "dummy", 7));
  EXPECT_NE(fingerprint_of(path, "dummy", 7), fingerprint_of(golden("models/qwen3")));
}

}  // namespace
}  // namespace attune::formats
