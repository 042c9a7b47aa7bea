// What the two readers of model configs (GGUF, Hugging Face) share: bounds, and the checks across
// fields.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "attune/status.h"
#include "formats/model_config.h"

namespace attune::formats {

// Far above any model; products of any four of hidden, intermediate, heads x head_dim, vocabulary
// and layers that occur (a tensor's bytes, all layers' bytes, KV bytes of all positions) stay below
// 2^63.
inline constexpr int32_t kMaxVocab = 1 << 22;
inline constexpr int32_t kMaxHidden = 1 << 18;
inline constexpr int32_t kMaxIntermediate = 1 << 20;
inline constexpr int32_t kMaxLayers = 1 << 10;
inline constexpr int32_t kMaxHeads = 1 << 10;
inline constexpr int32_t kMaxHeadDim = 1 << 10;
inline constexpr int32_t kMaxPositions = 1 << 28;
inline constexpr int32_t kMaxLoraRank = 1 << 15;
inline constexpr int32_t kMaxExperts = 1 << 12;
inline constexpr int32_t kMaxSharedExperts = 1 << 6;
inline constexpr int32_t kMaxExpertTensors = 1 << 18;  // experts x layers; DeepSeek-V3 has 15,000

// Read but kept only in what is derived from them.
struct RopeExtras {
  std::optional<double> attention_factor;
  double mscale = 0, mscale_all_dim = 0;
};

// Fills what is derived (head_dim, rope.dim, attention_scale, max_model_len, rope.attention_factor
// when 0 or unset) and checks fields against each other.
Status finish_config(const RopeExtras& extras, ModelConfig& config);

// REQUIRES: rope.original_max_positions is set when a scaling is.
int32_t derive_max_model_len(const RopeConfig& rope, int32_t max_position_embeddings);

// "none", "default", "linear", "llama3", "yarn" and its alias.
std::optional<RopeScaling> parse_rope_scaling(std::string_view name);

// Checks of experts against each other; clears what a single group makes void, or no experts, or no
// layer that has them.
Status finish_moe(ModelConfig& config);

const FamilyTraits* find_family(std::span<const FamilyTraits> families,
                                std::string_view FamilyTraits::*field, std::string_view name);
Status unknown_family(std::span<const FamilyTraits> families, std::string_view FamilyTraits::*field,
                      std::string_view name);

}  // namespace attune::formats
