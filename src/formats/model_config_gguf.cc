// ModelConfig from GGUF metadata. Keys: ggml's docs/gguf.md and llama.cpp's gguf-py constants.
#include <algorithm>
#include <cmath>
#include <string>

#include "formats/config_checks.h"
#include "formats/gguf.h"
#include "formats/gguf_tokens.h"
#include "formats/model_config.h"
#include "formats/quote.h"

namespace attune::formats {
namespace {

class GgufConfigReader {
 public:
  GgufConfigReader(const GgufFile& gguf, const FamilyTraits& family)
      : gguf_(gguf), family_(family), prefix_(std::string(family.gguf_architecture) + ".") {}

  Result<ModelConfig> run() {
    config_.architecture = family_.name;
    ATTUNE_RETURN_IF_ERROR(read_sizes());
    ATTUNE_RETURN_IF_ERROR(read_vocab_size());
    ATTUNE_RETURN_IF_ERROR(read_attention());
    RopeExtras extras;
    ATTUNE_RETURN_IF_ERROR(read_rope(extras));
    if (family_.mla) ATTUNE_RETURN_IF_ERROR(read_mla(extras));
    if (family_.moe != MoeRule::kNone) ATTUNE_RETURN_IF_ERROR(read_moe());
    ATTUNE_RETURN_IF_ERROR(read_tokens());
    read_presence();
    if (Status status = finish_config(extras, config_); !status.ok())
      return status.with_context(gguf_.path());
    ATTUNE_RETURN_IF_ERROR(read_rope_factors());
    return std::move(config_);
  }

 private:
  // `key` without the architecture's prefix. Absent: `fallback`, or an error when it is below lo.
  Status read_int(const std::string& key, int64_t lo, int64_t hi, int64_t fallback, int32_t& out) {
    return read_int_of(prefix_ + key, lo, hi, fallback, out);
  }

  Status read_int_of(const std::string& key, int64_t lo, int64_t hi, int64_t fallback,
                     int32_t& out) {
    if (gguf_.find(key) == nullptr && fallback >= lo) {
      out = int32_t(fallback);
      return {};
    }
    ATTUNE_ASSIGN_OR_RETURN(const int64_t value, gguf_.get_int(key));
    if (value < lo || value > hi)
      return data_loss(gguf_.path() + ": GGUF metadata " + key + " is " + std::to_string(value) +
                       ", expected " + std::to_string(lo) + " to " + std::to_string(hi));
    out = int32_t(value);
    return {};
  }

  // Absent: `out` stays.
  Status read_double(const std::string& key, double lo, double hi, double& out) {
    ATTUNE_ASSIGN_OR_RETURN(const double value, gguf_.get_double_or(prefix_ + key, out));
    if (!(value >= lo && value <= hi))
      return data_loss(gguf_.path() + ": GGUF metadata " + prefix_ + key + " is " +
                       std::to_string(value) + ", expected " + std::to_string(lo) + " to " +
                       std::to_string(hi));
    out = value;
    return {};
  }

  Status read_sizes() {
    ATTUNE_RETURN_IF_ERROR(read_int("embedding_length", 1, kMaxHidden, 0, config_.hidden_size));
    ATTUNE_RETURN_IF_ERROR(
        read_int("feed_forward_length", 1, kMaxIntermediate, 0, config_.intermediate_size));
    ATTUNE_RETURN_IF_ERROR(read_int("block_count", 1, kMaxLayers, 0, config_.num_layers));
    ATTUNE_RETURN_IF_ERROR(
        read_int("context_length", 1, kMaxPositions, 0, config_.max_position_embeddings));
    return read_double("attention.layer_norm_rms_epsilon", 0, 1, config_.rms_norm_eps);
  }

  // The embedding's rows; in a file without weights the key or the token list.
  Status read_vocab_size() {
    int64_t tokens = 0;
    if (gguf_.find("tokenizer.ggml.tokens") != nullptr) {
      ATTUNE_ASSIGN_OR_RETURN(const auto list, gguf_.get_strings("tokenizer.ggml.tokens"));
      tokens = int64_t(list.size());
    }
    const GgufTensor* embedding = gguf_.find_tensor("token_embd.weight");
    if (embedding == nullptr)
      return read_int("vocab_size", 1, kMaxVocab, std::min<int64_t>(tokens, kMaxVocab),
                      config_.vocab_size);
    const int64_t rows = embedding->view.shape[0];
    if (rows > kMaxVocab)
      return data_loss(gguf_.path() + ": token_embd.weight has " + std::to_string(rows) +
                       " rows, at most " + std::to_string(kMaxVocab) + " are supported");
    if (tokens > rows)
      return data_loss(gguf_.path() + ": tokenizer.ggml.tokens has " + std::to_string(tokens) +
                       " tokens but token_embd.weight only " + std::to_string(rows) + " rows");
    config_.vocab_size = int32_t(rows);
    return {};
  }

  Status read_attention() {
    ATTUNE_RETURN_IF_ERROR(read_int("attention.head_count", 1, kMaxHeads, 0, config_.num_heads));
    ATTUNE_RETURN_IF_ERROR(
        read_int("attention.head_count_kv", 1, kMaxHeads, config_.num_heads, config_.num_kv_heads));
    // 0: as hidden size / heads
    ATTUNE_RETURN_IF_ERROR(read_int("attention.key_length", 0, kMaxHeadDim, 0, config_.head_dim));
    ATTUNE_RETURN_IF_ERROR(
        read_int("attention.value_length", 0, kMaxHeadDim, 0, config_.v_head_dim));
    ATTUNE_RETURN_IF_ERROR(read_double("attention.scale", 0, 1e6, config_.attention_scale));
    ATTUNE_RETURN_IF_ERROR(
        read_double("attn_logit_softcapping", 0, 1e6, config_.attn_logit_softcap));
    ATTUNE_RETURN_IF_ERROR(
        read_double("final_logit_softcapping", 0, 1e6, config_.final_logit_softcap));
    int32_t window = 0;
    ATTUNE_RETURN_IF_ERROR(read_int("attention.sliding_window", 0, INT32_MAX, 0, window));
    config_.windows.assign(size_t(config_.num_layers), window);
    return {};
  }

  // Two conversions are about. The older keeps kv_b whole and gives the heads' sizes as key_length
  // and value_length; the newer splits it, describes one KV head as wide as the cached row there,
  // and gives the heads' sizes as key_length_mla and value_length_mla.
  Status read_mla(RopeExtras& extras) {
    ModelConfig& c = config_;
    c.mla.split_kv_b = gguf_.find(prefix_ + "attention.key_length_mla") != nullptr;
    const std::string suffix = c.mla.split_kv_b ? "_mla" : "";
    ATTUNE_RETURN_IF_ERROR(
        read_int("attention.key_length" + suffix, 1, kMaxHeadDim, 0, c.head_dim));
    ATTUNE_RETURN_IF_ERROR(
        read_int("attention.value_length" + suffix, 1, kMaxHeadDim, 0, c.v_head_dim));
    ATTUNE_RETURN_IF_ERROR(
        read_int("attention.kv_lora_rank", 1, kMaxLoraRank, 0, c.mla.kv_lora_rank));
    ATTUNE_RETURN_IF_ERROR(
        read_int("attention.q_lora_rank", 0, kMaxLoraRank, 0, c.mla.q_lora_rank));
    ATTUNE_RETURN_IF_ERROR(read_int("rope.dimension_count", 2, kMaxHeadDim, 0, c.rope.dim));
    if (c.rope.dim >= c.head_dim)
      return data_loss(gguf_.path() + ": GGUF metadata " + prefix_ + "rope.dimension_count is " +
                       std::to_string(c.rope.dim) + ", the whole head of " +
                       std::to_string(c.head_dim) + " elements");
    c.mla.nope_dim = c.head_dim - c.rope.dim;
    c.num_kv_heads = c.num_heads;  // after the up-projection
    ATTUNE_RETURN_IF_ERROR(
        read_int("nextn_predict_layers", 0, c.num_layers - 1, 0, c.num_nextn_layers));
    c.num_layers -= c.num_nextn_layers;  // block_count has them
    c.windows.resize(size_t(c.num_layers));
    // Written as a tenth of mscale_all_dim; the file takes mscale to be the same, so that rope
    // itself is not scaled.
    double log_multiplier = 0;
    ATTUNE_RETURN_IF_ERROR(read_double("rope.scaling.yarn_log_multiplier", 0, 100, log_multiplier));
    extras.mscale_all_dim = log_multiplier * 10;
    if (log_multiplier != 0 && extras.attention_factor) extras.attention_factor = 1;
    return {};
  }

  Status read_moe() {
    MoeConfig& m = config_.moe;
    ATTUNE_RETURN_IF_ERROR(read_int("expert_count", 0, kMaxExperts, 0, m.num_experts));
    if (m.num_experts == 0) return {};
    ATTUNE_RETURN_IF_ERROR(read_int("expert_used_count", 1, kMaxExperts, 0, m.experts_per_token));
    ATTUNE_RETURN_IF_ERROR(
        read_int("expert_feed_forward_length", 1, kMaxHidden, 0, m.intermediate_size));
    ATTUNE_RETURN_IF_ERROR(
        read_int("expert_shared_count", 0, kMaxSharedExperts, 0, m.shared_experts));
    int32_t first = 0;
    ATTUNE_RETURN_IF_ERROR(read_int("leading_dense_block_count", 0, kMaxLayers, 0, first));
    for (int32_t i = 0; i < config_.num_layers; ++i) m.layers.push_back(i >= first);
    ATTUNE_RETURN_IF_ERROR(read_double("expert_weights_scale", 0, 1e6, m.routed_scale));
    if (m.routed_scale == 0) m.routed_scale = 1;  // llama.cpp's mark for none
    ATTUNE_ASSIGN_OR_RETURN(m.normalize, gguf_.get_bool_or(prefix_ + "expert_weights_norm",
                                                           family_.moe == MoeRule::kQwen3));
    int32_t gating = 0;
    ATTUNE_RETURN_IF_ERROR(read_int("expert_gating_func", 0, 2, 0, gating));
    m.sigmoid = gating == 2;  // 1, and files without it: softmax
    ATTUNE_RETURN_IF_ERROR(read_int("expert_group_count", 1, kMaxExperts, 1, m.num_groups));
    ATTUNE_RETURN_IF_ERROR(
        read_int("expert_group_used_count", 1, kMaxExperts, 1, m.groups_per_token));
    m.group_top2 = m.sigmoid;
    const std::string bias = "blk." + std::to_string(first) + ".exp_probs_b.bias";
    m.correction_bias = gguf_.find_tensor(bias) != nullptr;
    return {};
  }

  Status read_rope(RopeExtras& extras) {
    RopeConfig& rope = config_.rope;
    rope.style = family_.gguf_rope;
    ATTUNE_RETURN_IF_ERROR(read_double("rope.freq_base", 1.0001, 1e15, rope.theta));
    ATTUNE_RETURN_IF_ERROR(read_int("rope.dimension_count", 0, kMaxHeadDim, 0, rope.dim));
    const std::string key = prefix_ + "rope.scaling.type";
    ATTUNE_ASSIGN_OR_RETURN(const std::string_view name, gguf_.get_string_or(key, "none"));
    const auto scaling = parse_rope_scaling(name);
    if (!scaling)
      return unsupported(gguf_.path() + ": GGUF metadata " + key + " is " + quote(name) +
                         "; supported: none, linear, llama3, yarn");
    rope.scaling = *scaling;
    if (rope.scaling == RopeScaling::kNone) return {};
    ATTUNE_RETURN_IF_ERROR(read_double("rope.scaling.factor", 1, 1e4, rope.factor));
    ATTUNE_RETURN_IF_ERROR(read_int("rope.scaling.original_context_length", 0, kMaxPositions, 0,
                                    rope.original_max_positions));
    if (rope.scaling != RopeScaling::kYarn) return {};
    ATTUNE_RETURN_IF_ERROR(read_double("rope.scaling.yarn_beta_fast", 1e-3, 1e6, rope.beta_fast));
    ATTUNE_RETURN_IF_ERROR(read_double("rope.scaling.yarn_beta_slow", 1e-3, 1e6, rope.beta_slow));
    // llama.cpp multiplies YaRN's temperature by this one.
    double multiplier = 1;
    ATTUNE_RETURN_IF_ERROR(read_double("rope.scaling.attn_factor", 1e-3, 1e3, multiplier));
    extras.attention_factor = multiplier * (0.1 * std::log(rope.factor) + 1.0);
    return {};
  }

  // Divisors of the frequencies (Llama 3.1's scaling in GGUF's form), an optional tensor.
  Status read_rope_factors() {
    const GgufTensor* tensor = gguf_.find_tensor("rope_freqs.weight");
    if (tensor == nullptr) return {};
    const tensor::TensorView& view = tensor->view;
    const int64_t pairs = config_.rope.dim / 2;
    if (view.dtype != tensor::DType::kF32 || view.shape != tensor::Shape{pairs})
      return data_loss(gguf_.path() + ": rope_freqs.weight is " + dtype_name(view.dtype) + " " +
                       view.shape.to_string() + ", expected float32 [" + std::to_string(pairs) +
                       "]");
    auto& factors = config_.rope.freq_factors;
    factors.resize(size_t(pairs));
    std::copy_n(static_cast<const std::byte*>(view.data), pairs * 4,
                reinterpret_cast<std::byte*>(factors.data()));
    for (float factor : factors)
      if (!(factor >= 1e-4f && factor <= 1e6f))
        return data_loss(gguf_.path() + ": rope_freqs.weight holds " + std::to_string(factor) +
                         ", expected 0.0001 to 1000000");
    return {};
  }

  Status read_tokens() {
    const auto id = [&](const char* name, int32_t& out) {
      return read_int_of("tokenizer.ggml." + std::string(name), -1, INT32_MAX, -1, out);
    };
    ATTUNE_RETURN_IF_ERROR(id("bos_token_id", config_.bos_token_id));
    ATTUNE_RETURN_IF_ERROR(id("padding_token_id", config_.pad_token_id));
    auto& eos = config_.eos_token_ids;
    const auto add = [&](TokenId token) {
      if (token != -1 && std::find(eos.begin(), eos.end(), token) == eos.end())
        eos.push_back(token);
    };
    // End of turn and end of message end an answer like end of text.
    for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
      int32_t token = -1;
      ATTUNE_RETURN_IF_ERROR(id(name, token));
      add(token);
    }
    for (const TokenId token : turn_end_tokens(gguf_))
      if (token < config_.vocab_size) add(token);
    return {};
  }

  // GGUF says these by which tensors there are.
  void read_presence() {
    const auto has = [&](const char* name) { return gguf_.find_tensor(name) != nullptr; };
    config_.qkv_bias =
        family_.qkv_bias || has("blk.0.attn_q.bias") || has("blk.0.attn_kv_a_mqa.bias");
    config_.o_bias = has("blk.0.attn_output.bias");
    config_.mlp_bias = has("blk.0.ffn_up.bias");
    config_.qk_norm = family_.qk_norm;
    config_.tie_word_embeddings = !has("output.weight");
  }

  const GgufFile& gguf_;
  const FamilyTraits& family_;
  const std::string prefix_;
  ModelConfig config_;
};

}  // namespace

Result<ModelConfig> model_config_from_gguf(const GgufFile& gguf,
                                           std::span<const FamilyTraits> families) {
  ATTUNE_ASSIGN_OR_RETURN(const std::string_view name, gguf.get_string("general.architecture"));
  const FamilyTraits* family = find_family(families, &FamilyTraits::gguf_architecture, name);
  if (family == nullptr)
    return unknown_family(families, &FamilyTraits::gguf_architecture, name)
        .with_context(gguf.path());
  return GgufConfigReader(gguf, *family).run();
}

}  // namespace attune::formats
