// ModelConfig from Hugging Face's config.json and generation_config.json; defaults are those of the
// classes in transformers (LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config,
// Qwen3MoeConfig).
#include <algorithm>
#include <string>

#include "formats/config_checks.h"
#include "formats/json.h"
#include "formats/model_config.h"
#include "formats/quote.h"

namespace attune::formats {
namespace {

// Typed reads of one object's members; a null counts as absent.
class Fields {
 public:
  Fields(const Json& object, std::string file) : object_(object), file_(std::move(file)) {}

  const Json* find(std::string_view key) const {
    const Json* value = object_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  bool present(std::string_view key) const { return object_.find(key) != nullptr; }  // null too
  Status bad(std::string_view key, const Json& value, const std::string& wanted) const {
    std::string text = value.is_array() || value.is_object()
                           ? std::string("an ") + value.type_name()
                           : value.dump();
    if (text.size() > 100) text = text.substr(0, 100) + "...";
    return data_loss(file_ + ": " + std::string(key) + " is " + text + ", expected " + wanted);
  }
  // Absent: out stays when `optional`.
  Status read_int(std::string_view key, int64_t lo, int64_t hi, int32_t& out,
                  bool optional = false) const {
    const Json* value = find(key);
    if (value == nullptr)
      return optional ? Status() : data_loss(file_ + ": " + std::string(key) + " is missing");
    if (!value->is_int() || value->as_int() < lo || value->as_int() > hi)
      return bad(key, *value,
                 "an integer from " + std::to_string(lo) + " to " + std::to_string(hi));
    out = int32_t(value->as_int());
    return {};
  }
  // Absent: out stays.
  Status read_double(std::string_view key, double lo, double hi, double& out) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_number() || !(value->as_double() >= lo && value->as_double() <= hi))
      return bad(key, *value, "a number from " + Json(lo).dump() + " to " + Json(hi).dump());
    out = value->as_double();
    return {};
  }
  Status read_bool(std::string_view key, bool& out) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_bool()) return bad(key, *value, "true or false");
    out = value->as_bool();
    return {};
  }
  Status read_string(std::string_view key, std::string& out) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_string()) return bad(key, *value, "a string");
    out = value->as_string();
    return {};
  }
  // A token id or a list of them, appended without repeats; -1 is none.
  Status read_ids(std::string_view key, std::vector<TokenId>& out) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    const Json::Array single{*value};
    for (const Json& id : value->is_array() ? value->as_array() : single) {
      if (!id.is_int() || id.as_int() < -1 || id.as_int() > INT32_MAX)
        return bad(key, id, "a token id or a list of them");
      const auto token = TokenId(id.as_int());
      if (token != -1 && std::find(out.begin(), out.end(), token) == out.end())
        out.push_back(token);
    }
    return {};
  }
  const std::string& file() const { return file_; }

 private:
  const Json& object_;
  std::string file_;
};

class HfConfigReader {
 public:
  HfConfigReader(const Json& config, const Json* generation, const FamilyTraits& family)
      : fields_(config, "config.json"), generation_(generation), family_(family) {}

  Result<ModelConfig> run() {
    config_.architecture = family_.name;
    ATTUNE_RETURN_IF_ERROR(read_sizes());
    if (family_.mla) ATTUNE_RETURN_IF_ERROR(read_mla());
    if (family_.moe != MoeRule::kNone) ATTUNE_RETURN_IF_ERROR(read_moe());
    ATTUNE_RETURN_IF_ERROR(read_flags());
    ATTUNE_RETURN_IF_ERROR(read_windows());
    RopeExtras extras;
    ATTUNE_RETURN_IF_ERROR(read_rope(extras));
    ATTUNE_RETURN_IF_ERROR(read_dtype());
    ATTUNE_RETURN_IF_ERROR(read_tokens());
    if (generation_ != nullptr) ATTUNE_RETURN_IF_ERROR(read_sampling());
    if (Status status = finish_config(extras, config_); !status.ok())
      return status.with_context("config.json");
    return std::move(config_);
  }

 private:
  Status read_sizes() {
    ModelConfig& c = config_;
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("vocab_size", 1, kMaxVocab, c.vocab_size));
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("hidden_size", 1, kMaxHidden, c.hidden_size));
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_int("intermediate_size", 1, kMaxIntermediate, c.intermediate_size));
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("num_hidden_layers", 1, kMaxLayers, c.num_layers));
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("num_attention_heads", 1, kMaxHeads, c.num_heads));
    c.num_kv_heads = c.num_heads;
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_int("num_key_value_heads", 1, kMaxHeads, c.num_kv_heads, true));
    if (!family_.mla)
      ATTUNE_RETURN_IF_ERROR(fields_.read_int("head_dim", 1, kMaxHeadDim, c.head_dim, true));
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_int("max_position_embeddings", 1, kMaxPositions, c.max_position_embeddings));
    c.rms_norm_eps = 1e-6;
    ATTUNE_RETURN_IF_ERROR(fields_.read_double("rms_norm_eps", 0, 1, c.rms_norm_eps));
    return fields_.read_double("initializer_range", 0, 10, c.initializer_range);
  }

  // head_dim, where a config has it, is the rotated part here: it is not read.
  Status read_mla() {
    ModelConfig& c = config_;
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("kv_lora_rank", 1, kMaxLoraRank, c.mla.kv_lora_rank));
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_int("q_lora_rank", 1, kMaxLoraRank, c.mla.q_lora_rank, true));
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_int("qk_nope_head_dim", 1, kMaxHeadDim / 2, c.mla.nope_dim));
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("qk_rope_head_dim", 2, kMaxHeadDim / 2, c.rope.dim));
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("v_head_dim", 1, kMaxHeadDim, c.v_head_dim));
    c.num_kv_heads = c.num_heads;  // after the up-projection
    c.head_dim = c.mla.nope_dim + c.rope.dim;
    return fields_.read_int("num_nextn_predict_layers", 0, kMaxLayers, c.num_nextn_layers, true);
  }

  Status read_moe() {
    MoeConfig& m = config_.moe;
    const bool qwen = family_.moe == MoeRule::kQwen3;
    ATTUNE_RETURN_IF_ERROR(
        qwen ? read_qwen_experts()
             : fields_.read_int("n_routed_experts", 0, kMaxExperts, m.num_experts, true));
    if (m.num_experts == 0) return {};
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_int("num_experts_per_tok", 1, kMaxExperts, m.experts_per_token));
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_int("moe_intermediate_size", 1, kMaxHidden, m.intermediate_size));
    m.normalize = family_.moe == MoeRule::kSigmoid;  // DeepseekV3Config's default, no other's
    ATTUNE_RETURN_IF_ERROR(fields_.read_bool("norm_topk_prob", m.normalize));
    return qwen ? read_qwen_layers() : read_deepseek_moe();
  }

  // transformers 5 writes num_local_experts, published files have num_experts.
  Status read_qwen_experts() {
    int32_t& experts = config_.moe.num_experts;
    const bool renamed = fields_.find("num_local_experts") != nullptr;
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("num_experts", 0, kMaxExperts, experts, renamed));
    if (!renamed) return {};
    int32_t local = 0;
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("num_local_experts", 0, kMaxExperts, local));
    if (fields_.find("num_experts") != nullptr && experts != local)
      return data_loss("config.json: num_experts is " + std::to_string(experts) +
                       " but num_local_experts " + std::to_string(local));
    experts = local;
    return {};
  }

  Status read_qwen_layers() {
    const int32_t count = config_.num_layers;
    std::vector<bool>& layers = config_.moe.layers;
    int32_t step = 1;
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("decoder_sparse_step", 1, kMaxLayers, step, true));
    for (int32_t i = 0; i < count; ++i) layers.push_back((i + 1) % step == 0);
    const Json* dense = fields_.find("mlp_only_layers");
    if (dense == nullptr) return {};
    if (!dense->is_array()) return fields_.bad("mlp_only_layers", *dense, "a list of layers");
    for (const Json& layer : dense->as_array()) {
      if (!layer.is_int() || layer.as_int() < 0 || layer.as_int() >= count)
        return fields_.bad("mlp_only_layers", layer,
                           "layers from 0 to " + std::to_string(count - 1));
      layers[size_t(layer.as_int())] = false;
    }
    return {};
  }

  Status read_deepseek_moe() {
    MoeConfig& m = config_.moe;
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_int("n_shared_experts", 0, kMaxSharedExperts, m.shared_experts, true));
    int32_t first = 0, freq = 1;
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("first_k_dense_replace", 0, kMaxLayers, first, true));
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("moe_layer_freq", 1, kMaxLayers, freq, true));
    for (int32_t i = 0; i < config_.num_layers; ++i)
      m.layers.push_back(i >= first && i % freq == 0);
    if (family_.moe == MoeRule::kSigmoid) m.routed_scale = 2.5;  // DeepseekV3Config's default
    ATTUNE_RETURN_IF_ERROR(fields_.read_double("routed_scaling_factor", 1e-6, 1e6, m.routed_scale));
    return read_routing();
  }

  Status read_routing() {
    MoeConfig& m = config_.moe;
    const bool v3 = family_.moe == MoeRule::kSigmoid;
    std::string scoring = v3 ? "sigmoid" : "softmax";
    ATTUNE_RETURN_IF_ERROR(fields_.read_string("scoring_func", scoring));
    if (scoring != "sigmoid" && scoring != "softmax")
      return unsupported("config.json: scoring_func is " + quote(scoring) +
                         "; supported: softmax, sigmoid");
    m.sigmoid = scoring == "sigmoid";
    std::string method = v3 ? "noaux_tc" : "greedy";
    ATTUNE_RETURN_IF_ERROR(fields_.read_string("topk_method", method));
    if (method == "greedy") return {};
    if (method != "group_limited_greedy" && method != "noaux_tc")
      return unsupported("config.json: topk_method is " + quote(method) +
                         "; supported: greedy, group_limited_greedy, noaux_tc");
    m.correction_bias = m.group_top2 = method == "noaux_tc";
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("n_group", 1, kMaxExperts, m.num_groups));
    return fields_.read_int("topk_group", 1, kMaxExperts, m.groups_per_token);
  }

  Status read_flags() {
    ModelConfig& c = config_;
    ATTUNE_RETURN_IF_ERROR(fields_.read_bool("tie_word_embeddings", c.tie_word_embeddings));
    bool attention_bias = false;
    ATTUNE_RETURN_IF_ERROR(fields_.read_bool("attention_bias", attention_bias));
    c.qkv_bias = family_.qkv_bias || attention_bias;  // with latents: of the down-projections
    c.o_bias = attention_bias && !family_.qkv_bias;
    ATTUNE_RETURN_IF_ERROR(fields_.read_bool("mlp_bias", c.mlp_bias));
    c.qk_norm = family_.qk_norm;
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_double("attn_logit_softcapping", 0, 1e6, c.attn_logit_softcap));
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_double("final_logit_softcapping", 0, 1e6, c.final_logit_softcap));
    ATTUNE_RETURN_IF_ERROR(fields_.read_string("hidden_act", c.hidden_act));
    if (c.hidden_act != "silu")
      return unsupported("config.json: hidden_act is " + quote(c.hidden_act) + "; supported: silu");
    if (fields_.find("quantization_config") != nullptr)
      return unsupported(
          "config.json: quantization_config: quantised safetensors are not supported; use the "
          "unquantised weights or a GGUF file");
    return {};
  }

  Status read_windows() {
    config_.windows.assign(size_t(config_.num_layers), 0);
    if (family_.window_rule == WindowRule::kIgnored) return {};
    const bool switched = family_.window_rule != WindowRule::kAllLayers;
    bool in_use = !switched;
    if (switched) ATTUNE_RETURN_IF_ERROR(fields_.read_bool("use_sliding_window", in_use));
    // MistralConfig's default, in force only when the key is absent, not when it is null.
    int32_t window = switched || fields_.present("sliding_window") ? 0 : 4096;
    ATTUNE_RETURN_IF_ERROR(fields_.read_int("sliding_window", 1, INT32_MAX, window, true));
    if (!in_use || window == 0) return {};
    if (fields_.find("layer_types") != nullptr) return read_layer_types(window);
    int32_t first = 0;
    if (family_.window_rule == WindowRule::kSwitched) {
      first = 28;  // Qwen2Config's default
      ATTUNE_RETURN_IF_ERROR(fields_.read_int("max_window_layers", 0, INT32_MAX, first, true));
    }
    for (size_t i = size_t(first); i < config_.windows.size(); ++i) config_.windows[i] = window;
    return {};
  }

  Status read_layer_types(int32_t window) {
    const Json& types = *fields_.find("layer_types");
    if (!types.is_array() || types.as_array().size() != config_.windows.size())
      return fields_.bad("layer_types", types, "one entry per hidden layer");
    for (size_t i = 0; i < config_.windows.size(); ++i) {
      const Json& type = types.as_array()[i];
      if (type == Json("sliding_attention"))
        config_.windows[i] = window;
      else if (!(type == Json("full_attention")))
        return fields_.bad("layer_types", type, "full_attention or sliding_attention");
    }
    return {};
  }

  // Both spellings: rope_scaling with rope_theta beside it, and rope_parameters with everything
  // inside.
  Status read_rope(RopeExtras& extras) {
    const Json* object = fields_.find("rope_parameters");
    const char* name = "rope_parameters";
    if (object == nullptr) object = fields_.find(name = "rope_scaling");
    static const Json kEmpty{Json::Object{}};
    if (object == nullptr) object = &kEmpty;
    if (!object->is_object()) return fields_.bad(name, *object, "an object");
    const Fields inner(*object, std::string("config.json: ") + name);
    ATTUNE_RETURN_IF_ERROR(fields_.read_double("rope_theta", 1.0001, 1e15, config_.rope.theta));
    ATTUNE_RETURN_IF_ERROR(inner.read_double("rope_theta", 1.0001, 1e15, config_.rope.theta));
    double rotary_share = 1;
    ATTUNE_RETURN_IF_ERROR(fields_.read_double("partial_rotary_factor", 0.001, 1, rotary_share));
    ATTUNE_RETURN_IF_ERROR(inner.read_double("partial_rotary_factor", 0.001, 1, rotary_share));
    bool interleaved = family_.hf_rope == RopeStyle::kInterleaved;
    ATTUNE_RETURN_IF_ERROR(fields_.read_bool("rope_interleave", interleaved));
    config_.rope.style = interleaved ? RopeStyle::kInterleaved : RopeStyle::kHalf;
    if (family_.mla) return read_rope_scaling(inner, extras);  // rope.dim has its own key
    const int32_t head_dim =
        config_.head_dim != 0 ? config_.head_dim : config_.hidden_size / config_.num_heads;
    if (rotary_share != 1) config_.rope.dim = int32_t(head_dim * rotary_share);
    return read_rope_scaling(inner, extras);
  }

  Status read_rope_scaling(const Fields& inner, RopeExtras& extras) {
    RopeConfig& rope = config_.rope;
    std::string type = "default";
    ATTUNE_RETURN_IF_ERROR(inner.read_string("type", type));
    ATTUNE_RETURN_IF_ERROR(inner.read_string("rope_type", type));
    const auto scaling = parse_rope_scaling(type);
    if (!scaling)
      return unsupported(inner.file() + ": rope_type is " + quote(type) +
                         "; supported: default, linear, llama3, yarn");
    rope.scaling = *scaling;
    if (rope.scaling == RopeScaling::kNone) return {};
    if (inner.find("factor") == nullptr) return data_loss(inner.file() + ": factor is missing");
    ATTUNE_RETURN_IF_ERROR(inner.read_double("factor", 1, 1e4, rope.factor));
    for (const Fields* fields : {&fields_, &inner})
      ATTUNE_RETURN_IF_ERROR(fields->read_int("original_max_position_embeddings", 1, kMaxPositions,
                                              rope.original_max_positions, true));
    ATTUNE_RETURN_IF_ERROR(inner.read_double("low_freq_factor", 1e-3, 1e6, rope.low_freq_factor));
    ATTUNE_RETURN_IF_ERROR(inner.read_double("high_freq_factor", 1e-3, 1e6, rope.high_freq_factor));
    ATTUNE_RETURN_IF_ERROR(inner.read_double("beta_fast", 1e-3, 1e6, rope.beta_fast));
    ATTUNE_RETURN_IF_ERROR(inner.read_double("beta_slow", 1e-3, 1e6, rope.beta_slow));
    ATTUNE_RETURN_IF_ERROR(inner.read_bool("truncate", rope.truncate));
    ATTUNE_RETURN_IF_ERROR(inner.read_double("mscale", 0, 1e3, extras.mscale));
    ATTUNE_RETURN_IF_ERROR(inner.read_double("mscale_all_dim", 0, 1e3, extras.mscale_all_dim));
    double factor = 0;
    ATTUNE_RETURN_IF_ERROR(inner.read_double("attention_factor", 1e-3, 1e3, factor));
    if (factor != 0) extras.attention_factor = factor;
    return {};
  }

  Status read_dtype() {
    std::string name = "float32";
    ATTUNE_RETURN_IF_ERROR(fields_.read_string("torch_dtype", name));
    ATTUNE_RETURN_IF_ERROR(fields_.read_string("dtype", name));
    const auto dtype = tensor::parse_dtype(name);
    if (!dtype || (*dtype != tensor::DType::kF32 && *dtype != tensor::DType::kF16 &&
                   *dtype != tensor::DType::kBF16))
      return unsupported("config.json: torch_dtype is " + quote(name) +
                         "; supported: float32, float16, bfloat16");
    config_.dtype = *dtype;
    return {};
  }

  Status read_tokens() {
    std::vector<TokenId> bos;
    ATTUNE_RETURN_IF_ERROR(fields_.read_ids("bos_token_id", bos));
    ATTUNE_RETURN_IF_ERROR(
        fields_.read_int("pad_token_id", INT32_MIN, INT32_MAX, config_.pad_token_id, true));
    if (generation_ != nullptr) {
      const Fields generation(*generation_, "generation_config.json");
      ATTUNE_RETURN_IF_ERROR(generation.read_ids("eos_token_id", config_.eos_token_ids));
    }
    ATTUNE_RETURN_IF_ERROR(fields_.read_ids("eos_token_id", config_.eos_token_ids));
    if (!bos.empty()) config_.bos_token_id = bos.front();
    return {};
  }

  Status read_sampling() {
    const Fields fields(*generation_, "generation_config.json");
    SamplingDefaults& s = config_.sampling;
    const auto read = [&](const char* key, double lo, double hi, std::optional<float>& out) {
      if (fields.find(key) == nullptr) return Status();
      double value = 0;
      Status status = fields.read_double(key, lo, hi, value);
      if (status.ok()) out = float(value);
      return status;
    };
    ATTUNE_RETURN_IF_ERROR(read("temperature", 0, 100, s.temperature));
    ATTUNE_RETURN_IF_ERROR(read("top_p", 1e-6, 1, s.top_p));
    ATTUNE_RETURN_IF_ERROR(read("min_p", 0, 1, s.min_p));
    ATTUNE_RETURN_IF_ERROR(read("repetition_penalty", 1e-3, 2, s.repetition_penalty));
    if (fields.find("top_k") == nullptr) return {};
    int32_t top_k = 0;
    ATTUNE_RETURN_IF_ERROR(fields.read_int("top_k", -1, INT32_MAX, top_k));
    s.top_k = top_k == 0 ? -1 : top_k;  // transformers says 0 for all
    return {};
  }

  const Fields fields_;
  const Json* generation_;
  const FamilyTraits& family_;
  ModelConfig config_;
};

}  // namespace

Result<ModelConfig> model_config_from_hf(const Json& config, const Json* generation,
                                         std::span<const FamilyTraits> families) {
  if (!config.is_object()) return data_loss("config.json: not an object");
  if (generation != nullptr && !generation->is_object())
    return data_loss("generation_config.json: not an object");
  const Fields fields(config, "config.json");
  std::string type;
  ATTUNE_RETURN_IF_ERROR(fields.read_string("model_type", type));
  auto field = &FamilyTraits::name;
  if (const Json* list = fields.find("architectures"); list != nullptr) {
    if (!list->is_array() || list->as_array().empty() || !list->as_array()[0].is_string())
      return fields.bad("architectures", *list, "a list with a class name");
    type = list->as_array()[0].as_string();
    field = &FamilyTraits::hf_architecture;
  }
  const FamilyTraits* family = find_family(families, field, type);
  if (family == nullptr) return unknown_family(families, field, type).with_context("config.json");
  return HfConfigReader(config, generation, *family).run();
}

}  // namespace attune::formats
