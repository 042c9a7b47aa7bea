// What a model is, in one plain form, whichever file it came from: GGUF metadata or Hugging Face's
// config.json and generation_config.json. Every field is range-checked when it is read, so that
// products of them (tensor sizes, KV bytes per token) fit int64 and nothing downstream needs to
// check again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attune/request.h"
#include "attune/status.h"
#include "formats/json.h"
#include "tensor/dtype.h"

namespace attune::formats {

class GgufFile;

// Which pairs of a head's first `dim` elements rotate together.
enum class RopeStyle : uint8_t {
  kHalf,         // (i, i + dim/2): Hugging Face, and GGUF files of the qwen families ("NEOX")
  kInterleaved,  // (2i, 2i + 1): GGUF files of the llama family, whose q and k rows are permuted
                 // for it
};
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  double theta = 10000.0;
  int32_t dim = 0;  // rotated elements of a head, even, <= head_dim
  RopeStyle style = RopeStyle::kHalf;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int32_t original_max_positions = 0;        // llama3, yarn
  double low_freq_factor = 1.0;              // llama3
  double high_freq_factor = 4.0;             // llama3
  double beta_fast = 32.0, beta_slow = 1.0;  // yarn
  bool truncate = true;                      // yarn: round the correction range to whole dims
  double attention_factor = 1.0;             // yarn: multiplies cos and sin, already derived
  std::vector<float>
      freq_factors;  // [dim/2] divisors of the frequencies, or empty (GGUF rope_freqs)

  bool operator==(const RopeConfig&) const = default;
};

// One angle per position and pair: angle(p, i) = p * inverse_frequencies[i]; cos and sin are
// multiplied by rope.attention_factor. [dim/2] entries, scaling applied. Formulas: RoPE
// arXiv:2104.09864; YaRN arXiv:2309.00071 section 3; Llama 3.1's as in Meta's model card code.
std::vector<double> inverse_frequencies(const RopeConfig& rope);

// From generation_config.json; unset fields are the API's own defaults.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;

  bool operator==(const SamplingDefaults&) const = default;
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): a token's keys and values of all
// heads are up-projected from one latent, beside it lies one rotated key that the heads share.
// head_dim is then nope_dim + rope.dim, a head's first nope_dim elements are not rotated.
struct MlaConfig {
  int32_t kv_lora_rank = 0;  // elements of the latent; 0: the model has no latent attention
  int32_t q_lora_rank = 0;   // 0: queries are projected from the hidden state directly
  int32_t nope_dim = 0;
  // The up-projection lies as k_b [heads, kv_lora_rank, nope_dim] and v_b [heads, v_head_dim,
  // kv_lora_rank] (GGUF since 2025) instead of kv_b [heads * (nope_dim + v_head_dim), kv_lora_rank]
  bool split_kv_b = false;

  bool operator==(const MlaConfig&) const = default;
};

// Which experts a token goes to, and how they are weighted.
struct MoeConfig {
  int32_t num_experts = 0;   // routed ones; 0: every layer has a dense MLP
  std::vector<bool> layers;  // one per layer: whether it has experts, else a dense MLP
  int32_t experts_per_token = 0;
  int32_t intermediate_size = 0;  // of one expert
  int32_t shared_experts = 0;     // they make one MLP of shared_experts * intermediate_size
  bool sigmoid = false;           // scores of the experts; else softmax over all of them
  bool correction_bias = false;   // added to the scores for the choice, not for the weights
  // Experts are chosen from the best groups_per_token of num_groups; a group's score is that of its
  // best expert (V2), or the sum of its two best (V3).
  int32_t num_groups = 1, groups_per_token = 1;
  bool group_top2 = false;
  bool normalize = false;  // the chosen weights sum to 1, before the factor
  double routed_scale = 1;

  // REQUIRES: 0 <= layer < ModelConfig::num_layers
  bool is_moe(int32_t layer) const { return num_experts > 0 && layers[size_t(layer)]; }
  bool operator==(const MoeConfig&) const = default;
};

struct ModelConfig {
  std::string architecture;  // the family: "llama", "mistral", "qwen3_moe", "deepseek_v2", ...
  int32_t vocab_size = 0;    // rows of the embedding
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // of q and k
  int32_t v_head_dim = 0;
  double rms_norm_eps = 1e-5;
  std::string hidden_act = "silu";
  MlaConfig mla;
  MoeConfig moe;
  // Layers that the file has behind the last, for a drafter: they are not read.
  int32_t num_nextn_layers = 0;
  RopeConfig rope;
  // One per layer: a token sees itself and the window - 1 tokens before it; 0: all of them.
  std::vector<int32_t> windows;
  int32_t max_position_embeddings = 0;  // as the file has it
  int32_t max_model_len = 0;  // tokens; after rope scaling, never past what its table covers
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;              // RMS norm of each q and k head before rope
  bool tie_word_embeddings = false;  // the head is embed_tokens; lm_head.weight is not read
  double attention_scale = 0;  // of q.k; 1/sqrt(head_dim) unless the file or the family has another
  double attn_logit_softcap = 0, final_logit_softcap = 0;  // 0: none
  TokenId bos_token_id = -1, pad_token_id = -1;            // -1: none
  std::vector<TokenId> eos_token_ids;                      // may be empty
  SamplingDefaults sampling;
  tensor::DType dtype =
      tensor::DType::kF32;          // what a HF config says its weights are; dummy weights have it
  double initializer_range = 0.02;  // standard deviation of dummy weights

  bool has_mla() const { return mla.kv_lora_rank > 0; }
  bool operator==(const ModelConfig&) const = default;
};

// What config.json's sliding_window means to a family.
enum class WindowRule : uint8_t {
  kIgnored,
  kAllLayers,    // in force whenever it is set
  kSwitched,     // only with use_sliding_window, from layer max_window_layers on
  kSwitchedAll,  // only with use_sliding_window, in all layers
};

// How a family's experts are routed where its files do not say.
enum class MoeRule : uint8_t {
  kNone,
  kSoftmax,  // DeepSeek-V2: softmax scores, greedy
  kSigmoid,  // DeepSeek-V3: sigmoid scores, with a correction bias, by groups ("noaux_tc")
  kQwen3,    // Qwen3-MoE: softmax scores, greedy; keys of its own; weights sum to 1 in GGUF files
};

// What formats must know of a family to read its files. The families are src/model's: callers bring
// their list.
struct FamilyTraits {
  std::string_view name;  // "qwen2": ModelConfig::architecture, and config.json's model_type
  std::string_view gguf_architecture;  // general.architecture; empty: another family reads them
  std::string_view hf_architecture;    // "Qwen2ForCausalLM"
  RopeStyle gguf_rope = RopeStyle::kHalf;
  RopeStyle hf_rope = RopeStyle::kHalf;  // unless the config's rope_interleave says otherwise
  bool qkv_bias = false;                 // always, whatever the config says; then o_proj has none
  bool qk_norm = false;
  WindowRule window_rule = WindowRule::kIgnored;
  bool mla = false;
  MoeRule moe = MoeRule::kNone;
};

// Errors name the key and what it may be; unsupported lists the families.
Result<ModelConfig> model_config_from_gguf(const GgufFile& gguf,
                                           std::span<const FamilyTraits> families);
// `generation` may be null. REQUIRES: nothing; any document is answered with a config or a Status.
Result<ModelConfig> model_config_from_hf(const Json& config, const Json* generation,
                                         std::span<const FamilyTraits> families);

}  // namespace attune::formats
