#include "formats/weight_source.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "formats/quote.h"
#include "formats/safetensors.h"

namespace attune::formats {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

struct NamePair {
  std::string_view gguf, hf;
};
constexpr NamePair kGlobalNames[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};
// What stands before ".weight" or ".bias", after "blk.N." and "model.layers.N.".
constexpr NamePair kLayerNames[] = {
    {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};
constexpr std::string_view kGgufLayer = "blk.", kHfLayer = "model.layers.";

// "blk.7.attn_q.weight" -> "model.layers.7.self_attn.q_proj.weight". A name that has no counterpart
// stays.
std::string to_hf(std::string_view name) {
  for (const NamePair& pair : kGlobalNames)
    if (name == pair.gguf) return std::string(pair.hf);
  const size_t dot = name.find('.', kGgufLayer.size());
  const size_t last = name.rfind('.');
  if (!name.starts_with(kGgufLayer) || dot == name.npos || last <= dot) return std::string(name);
  const std::string_view layer = name.substr(kGgufLayer.size(), dot - kGgufLayer.size());
  const std::string_view middle = name.substr(dot + 1, last - dot - 1);
  for (const NamePair& pair : kLayerNames)
    if (middle == pair.gguf)
      return std::string(kHfLayer).append(layer).append(".").append(pair.hf).append(
          name.substr(last));
  return std::string(name);
}

class GgufWeights final : public WeightSource {
 public:
  explicit GgufWeights(std::shared_ptr<const GgufFile> gguf) : gguf_(std::move(gguf)) {
    for (const GgufTensor& tensor : gguf_->tensors()) {
      index_.emplace(to_hf(tensor.name), tensor.view);
      bytes_ += tensor.view.bytes();
    }
  }
  std::optional<TensorView> find(std::string_view name) const override {
    const auto it = index_.find(name);
    return it == index_.end() ? std::nullopt : std::optional(it->second);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const auto& [name, view] : index_) out.push_back(name);
    return out;
  }
  int64_t bytes() const override { return bytes_; }
  void drop(const TensorView& view) const override {
    const auto* data = static_cast<const std::byte*>(view.data);
    // Advice only: a failure costs memory, nothing else.
    (void)gguf_->file().drop(uint64_t(data - gguf_->file().data()), uint64_t(view.bytes()));
  }
  Status check_intact() const override { return gguf_->file().check_not_shrunk(); }

 private:
  std::shared_ptr<const GgufFile> gguf_;
  std::map<std::string, TensorView, std::less<>> index_;
  int64_t bytes_ = 0;
};

class SafetensorsWeights final : public WeightSource {
 public:
  explicit SafetensorsWeights(SafetensorsModel model) : model_(std::move(model)) {}

  std::optional<TensorView> find(std::string_view name) const override {
    const TensorView* view = model_.find(name);
    return view == nullptr ? std::nullopt : std::optional(*view);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const SafetensorsFile& shard : model_.shards())
      for (const SafetensorsTensor& tensor : shard.tensors()) out.push_back(tensor.name);
    std::sort(out.begin(), out.end());
    return out;
  }
  int64_t bytes() const override {
    int64_t sum = 0;
    for (const SafetensorsFile& shard : model_.shards())
      for (const SafetensorsTensor& tensor : shard.tensors()) sum += tensor.view.bytes();
    return sum;
  }
  void drop(const TensorView& view) const override {
    const auto* data = static_cast<const std::byte*>(view.data);
    for (const SafetensorsFile& shard : model_.shards()) {
      const std::byte* start = shard.file().data();
      if (std::less_equal<>()(start, data) && std::less<>()(data, start + shard.file_bytes()))
        (void)shard.file().drop(uint64_t(data - start), uint64_t(view.bytes()));
    }
  }
  Status check_intact() const override {
    for (const SafetensorsFile& shard : model_.shards())
      ATTUNE_RETURN_IF_ERROR(shard.file().check_not_shrunk());
    return {};
  }

 private:
  SafetensorsModel model_;
};

void add_layer(const ModelConfig& c, int32_t layer, std::vector<TensorSpec>& specs) {
  const std::string prefix = std::string(kHfLayer) + std::to_string(layer) + ".";
  const auto add = [&](const char* name, Shape shape, bool optional = false) {
    specs.push_back({prefix + name, shape, optional});
  };
  const int64_t hidden = c.hidden_size, inter = c.intermediate_size;
  const int64_t q = int64_t(c.num_heads) * c.head_dim, k = int64_t(c.num_kv_heads) * c.head_dim;
  const int64_t v = int64_t(c.num_kv_heads) * c.v_head_dim;
  const int64_t o = int64_t(c.num_heads) * c.v_head_dim;
  add("input_layernorm.weight", {hidden});
  add("self_attn.q_proj.weight", {q, hidden});
  add("self_attn.k_proj.weight", {k, hidden});
  add("self_attn.v_proj.weight", {v, hidden});
  add("self_attn.o_proj.weight", {hidden, o});
  if (c.qkv_bias) {
    add("self_attn.q_proj.bias", {q});
    add("self_attn.k_proj.bias", {k});
    add("self_attn.v_proj.bias", {v});
  }
  if (c.o_bias) add("self_attn.o_proj.bias", {hidden});
  if (c.qk_norm) {
    add("self_attn.q_norm.weight", {c.head_dim});
    add("self_attn.k_norm.weight", {c.head_dim});
  }
  add("post_attention_layernorm.weight", {hidden});
  add("mlp.gate_proj.weight", {inter, hidden});
  add("mlp.up_proj.weight", {inter, hidden});
  add("mlp.down_proj.weight", {hidden, inter});
  if (c.mlp_bias) {
    add("mlp.gate_proj.bias", {inter});
    add("mlp.up_proj.bias", {inter});
    add("mlp.down_proj.bias", {hidden});
  }
  // Old checkpoints saved the rope table; it follows from the config.
  add("self_attn.rotary_emb.inv_freq", {c.rope.dim / 2}, true);
}

bool is_weight_dtype(DType dtype) {
  return tensor::dtype_info(dtype).quantized || dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

// "missing: a, b, c and 7 more; "
void append_list(const char* title, const std::vector<std::string>& names, std::string& out) {
  constexpr size_t kShown = 10;
  if (names.empty()) return;
  out += (out.empty() ? "" : "; ") + std::string(title) + ": ";
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) out += (i ? ", " : "") + names[i];
  if (names.size() > kShown) out += " and " + std::to_string(names.size() - kShown) + " more";
}

}  // namespace

std::unique_ptr<WeightSource> gguf_weights(std::shared_ptr<const GgufFile> gguf) {
  return std::make_unique<GgufWeights>(std::move(gguf));
}

Result<std::unique_ptr<WeightSource>> safetensors_weights(const std::string& folder) {
  ATTUNE_ASSIGN_OR_RETURN(SafetensorsModel model, SafetensorsModel::open(folder));
  return std::unique_ptr<WeightSource>(std::make_unique<SafetensorsWeights>(std::move(model)));
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  std::vector<TensorSpec> specs;
  const Shape embedding{config.vocab_size, config.hidden_size};
  specs.push_back({"model.embed_tokens.weight", embedding});
  for (int32_t layer = 0; layer < config.num_layers; ++layer) add_layer(config, layer, specs);
  specs.push_back({"model.norm.weight", {config.hidden_size}});
  // A tied checkpoint may still hold the head; it is not read.
  specs.push_back({"lm_head.weight", embedding, config.tie_word_embeddings});
  specs.push_back({"rope_freqs.weight", {config.rope.dim / 2}, true});
  return specs;
}

Status check_weights(std::span<const TensorSpec> specs, const WeightSource& weights) {
  std::vector<std::string> missing, wrong, unread;
  std::set<std::string_view> known;
  for (const TensorSpec& spec : specs) {
    known.insert(spec.name);
    const std::optional<TensorView> view = weights.find(spec.name);
    if (!view) {
      if (!spec.optional) missing.push_back(spec.name);
    } else if (view->shape != spec.shape) {
      wrong.push_back(spec.name + " is " + view->shape.to_string() + ", expected " +
                      spec.shape.to_string());
    } else if (!is_weight_dtype(view->dtype)) {
      wrong.push_back(spec.name + " is " + dtype_name(view->dtype));
    }
  }
  for (const std::string& name : weights.names())
    if (!known.contains(name)) unread.push_back(quote(name));
  std::string message;
  append_list("missing", missing, message);
  append_list("of another shape or type", wrong, message);
  append_list("not part of the architecture that the config describes", unread, message);
  if (message.empty()) return {};
  for (const std::string& name : missing)
    if (name == "lm_head.weight")
      message +=
          "; the config says tie_word_embeddings false: if the head is the embedding, set it to "
          "true";
  return data_loss("tensors " + message);
}

}  // namespace attune::formats
