#include "formats/weight_source.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "formats/config_checks.h"
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
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_k_b", "self_attn.k_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_v_b", "self_attn.v_b_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
};
// All experts of a layer in one tensor [experts, rows, inputs]; some files have gate and up as one.
struct ExpertName {
  std::string_view gguf;
  std::array<std::string_view, 2> hf;  // what its rows are split into
};
constexpr ExpertName kExpertNames[] = {
    {"ffn_gate_exps", {"gate_proj", ""}},
    {"ffn_up_exps", {"up_proj", ""}},
    {"ffn_down_exps", {"down_proj", ""}},
    {"ffn_gate_up_exps", {"gate_proj", "up_proj"}},
};
constexpr std::string_view kGgufLayer = "blk.", kHfLayer = "model.layers.";

// "blk.7.attn_q.weight" in parts; empty when it is no layer's.
struct LayerName {
  std::string_view layer, middle, kind;  // "7", "attn_q", ".weight"

  static LayerName parse(std::string_view name) {
    const size_t dot = name.find('.', kGgufLayer.size());
    const size_t last = name.rfind('.');
    if (!name.starts_with(kGgufLayer) || dot == name.npos || last <= dot) return {};
    return {name.substr(kGgufLayer.size(), dot - kGgufLayer.size()),
            name.substr(dot + 1, last - dot - 1), name.substr(last)};
  }
  std::string hf() const { return std::string(kHfLayer).append(layer).append("."); }
};

// "blk.7.attn_q.weight" -> "model.layers.7.self_attn.q_proj.weight". A name that has no counterpart
// stays.
std::string to_hf(std::string_view name) {
  for (const NamePair& pair : kGlobalNames)
    if (name == pair.gguf) return std::string(pair.hf);
  const LayerName in = LayerName::parse(name);
  if (in.middle == "exp_probs_b" && in.kind == ".bias")
    return in.hf() + "mlp.gate.e_score_correction_bias";
  for (const NamePair& pair : kLayerNames)
    if (in.middle == pair.gguf) return in.hf().append(pair.hf).append(in.kind);
  return std::string(name);
}

// Rows [row, row + rows) of the index-th matrix of a [count, n, k] tensor.
TensorView slice(const TensorView& all, int64_t index, int64_t row, int64_t rows) {
  const int64_t n = all.shape[1], k = all.shape[2];
  const int64_t offset = tensor::dtype_bytes(all.dtype, (index * n + row) * k);
  return {static_cast<const std::byte*>(all.data) + offset, all.dtype, Shape{rows, k}};
}

class GgufWeights final : public WeightSource {
 public:
  explicit GgufWeights(std::shared_ptr<const GgufFile> gguf) : gguf_(std::move(gguf)) {
    for (const GgufTensor& tensor : gguf_->tensors()) {
      if (!add_experts(tensor)) index_.emplace(to_hf(tensor.name), tensor.view);
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
  // False: it is no tensor of experts, or not shaped like one.
  bool add_experts(const GgufTensor& tensor) {
    const TensorView& all = tensor.view;
    const LayerName name = LayerName::parse(tensor.name);
    for (const ExpertName& expert : kExpertNames) {
      const int parts = expert.hf[1].empty() ? 1 : 2;
      if (name.middle != expert.gguf || name.kind != ".weight" || all.shape.rank != 3 ||
          all.shape[0] > kMaxExperts || all.shape[1] % parts != 0 || all.shape[2] < 1)
        continue;
      const int64_t rows = all.shape[1] / parts;
      for (int64_t e = 0; e < all.shape[0]; ++e)
        for (int part = 0; part < parts; ++part)
          index_.emplace(name.hf() + "mlp.experts." + std::to_string(e) + "." +
                             std::string(expert.hf[part]) + ".weight",
                         slice(all, e, part * rows, rows));
      return true;
    }
    return false;
  }

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

// Collects the tensors of one layer.
class LayerSpecs {
 public:
  LayerSpecs(const ModelConfig& config, int32_t layer, std::vector<TensorSpec>& specs)
      : c_(config),
        layer_(layer),
        prefix_(std::string(kHfLayer) + std::to_string(layer) + "."),
        specs_(specs) {}

  void add_all() const {
    add("input_layernorm.weight", {c_.hidden_size});
    if (c_.has_mla())
      add_mla();
    else
      add_mha();
    add("post_attention_layernorm.weight", {c_.hidden_size});
    if (c_.moe.is_moe(layer_))
      add_moe();
    else
      add_mlp("mlp.", c_.intermediate_size, c_.mlp_bias);
    // Old checkpoints saved the rope table; it follows from the config.
    add("self_attn.rotary_emb.inv_freq", {c_.rope.dim / 2}, true);
  }

 private:
  void add(const std::string& name, Shape shape, bool optional = false) const {
    specs_.push_back({prefix_ + name, shape, optional});
  }

  void add_mha() const {
    const int64_t hidden = c_.hidden_size, heads = c_.num_heads, kv_heads = c_.num_kv_heads;
    const int64_t q = heads * c_.head_dim, k = kv_heads * c_.head_dim, v = kv_heads * c_.v_head_dim;
    add("self_attn.q_proj.weight", {q, hidden});
    add("self_attn.k_proj.weight", {k, hidden});
    add("self_attn.v_proj.weight", {v, hidden});
    add("self_attn.o_proj.weight", {hidden, heads * c_.v_head_dim});
    if (c_.qkv_bias) {
      add("self_attn.q_proj.bias", {q});
      add("self_attn.k_proj.bias", {k});
      add("self_attn.v_proj.bias", {v});
    }
    if (c_.o_bias) add("self_attn.o_proj.bias", {hidden});
    if (c_.qk_norm) {
      add("self_attn.q_norm.weight", {c_.head_dim});
      add("self_attn.k_norm.weight", {c_.head_dim});
    }
  }

  void add_mla() const {
    const int64_t hidden = c_.hidden_size, heads = c_.num_heads;
    const int64_t q = heads * c_.head_dim, row = c_.mla.kv_lora_rank + c_.rope.dim;
    const int64_t q_lora = c_.mla.q_lora_rank, kv_lora = c_.mla.kv_lora_rank;
    if (q_lora > 0) {
      add("self_attn.q_a_proj.weight", {q_lora, hidden});
      if (c_.qkv_bias) add("self_attn.q_a_proj.bias", {q_lora});
      add("self_attn.q_a_layernorm.weight", {q_lora});
      add("self_attn.q_b_proj.weight", {q, q_lora});
    } else {
      add("self_attn.q_proj.weight", {q, hidden});
    }
    add("self_attn.kv_a_proj_with_mqa.weight", {row, hidden});
    if (c_.qkv_bias) add("self_attn.kv_a_proj_with_mqa.bias", {row});
    add("self_attn.kv_a_layernorm.weight", {kv_lora});
    // A file may have both; the one that the config names is read.
    const bool split = c_.mla.split_kv_b;
    add("self_attn.kv_b_proj.weight", {heads * (c_.mla.nope_dim + c_.v_head_dim), kv_lora}, split);
    add("self_attn.k_b_proj.weight", {heads, kv_lora, c_.mla.nope_dim}, !split);
    add("self_attn.v_b_proj.weight", {heads, c_.v_head_dim, kv_lora}, !split);
    add("self_attn.o_proj.weight", {hidden, heads * c_.v_head_dim});
    if (c_.o_bias) add("self_attn.o_proj.bias", {hidden});
  }

  void add_mlp(const std::string& name, int64_t inter, bool bias) const {
    const int64_t hidden = c_.hidden_size;
    add(name + "gate_proj.weight", {inter, hidden});
    add(name + "up_proj.weight", {inter, hidden});
    add(name + "down_proj.weight", {hidden, inter});
    if (!bias) return;
    add(name + "gate_proj.bias", {inter});
    add(name + "up_proj.bias", {inter});
    add(name + "down_proj.bias", {hidden});
  }

  void add_moe() const {
    const MoeConfig& m = c_.moe;
    add("mlp.gate.weight", {m.num_experts, c_.hidden_size});
    if (m.correction_bias) add("mlp.gate.e_score_correction_bias", {m.num_experts});
    for (int32_t e = 0; e < m.num_experts; ++e)
      add_mlp("mlp.experts." + std::to_string(e) + ".", m.intermediate_size, false);
    if (m.shared_experts > 0)
      add_mlp("mlp.shared_experts.", int64_t{m.shared_experts} * m.intermediate_size, false);
  }

  const ModelConfig& c_;
  const int32_t layer_;
  const std::string prefix_;
  std::vector<TensorSpec>& specs_;
};

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
  for (int32_t layer = 0; layer < config.num_layers; ++layer)
    LayerSpecs(config, layer, specs).add_all();
  for (int32_t i = 0; i < config.num_nextn_layers; ++i)
    for (std::string_view before : {kHfLayer, kGgufLayer})  // GGUF's own names have no counterpart
      specs.push_back(
          {std::string(before) + std::to_string(config.num_layers + i) + ".", {}, true, true});
  specs.push_back({"model.norm.weight", {config.hidden_size}});
  // A tied checkpoint may still hold the head; it is not read.
  specs.push_back({"lm_head.weight", embedding, config.tie_word_embeddings});
  specs.push_back({"rope_freqs.weight", {config.rope.dim / 2}, true});
  return specs;
}

Status check_weights(std::span<const TensorSpec> specs, const WeightSource& weights) {
  std::vector<std::string> missing, wrong, unread;
  std::set<std::string_view> known;
  std::vector<std::string_view> prefixes;
  for (const TensorSpec& spec : specs) {
    if (spec.prefix) {
      prefixes.push_back(spec.name);
      continue;
    }
    known.insert(spec.name);
    const std::optional<TensorView> view = weights.describe(spec.name);
    if (!view) {
      if (!spec.optional) missing.push_back(spec.name);
    } else if (view->shape != spec.shape) {
      wrong.push_back(spec.name + " is " + view->shape.to_string() + ", expected " +
                      spec.shape.to_string());
    } else if (!is_weight_dtype(view->dtype)) {
      wrong.push_back(spec.name + " is " + dtype_name(view->dtype));
    }
  }
  for (const std::string& name : weights.names()) {
    const bool skipped =
        std::any_of(prefixes.begin(), prefixes.end(),
                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (!skipped && !known.contains(name)) unread.push_back(quote(name));
  }
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
