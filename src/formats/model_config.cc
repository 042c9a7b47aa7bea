#include "formats/model_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "formats/config_checks.h"
#include "formats/quote.h"

namespace attune::formats {
namespace {

// YaRN's temperature, arXiv:2309.00071 equation 22, with DeepSeek's weight.
double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void scale_llama3(const RopeConfig& rope, std::vector<double>& freqs) {
  const double original = rope.original_max_positions;
  for (double& f : freqs) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < original / rope.high_freq_factor) continue;
    if (wavelength > original / rope.low_freq_factor) {
      f /= rope.factor;
      continue;
    }
    const double smooth = (original / wavelength - rope.low_freq_factor) /
                          (rope.high_freq_factor - rope.low_freq_factor);
    f = (1 - smooth) * f / rope.factor + smooth * f;
  }
}

void scale_yarn(const RopeConfig& rope, std::vector<double>& freqs) {
  // The pair that turns `rotations` times within the original context.
  const auto correction = [&](double rotations) {
    return rope.dim * std::log(rope.original_max_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = correction(rope.beta_fast), high = correction(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, double(rope.dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < freqs.size(); ++i) {
    const double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    freqs[i] = freqs[i] / rope.factor * ramp + freqs[i] * (1 - ramp);
  }
}

}  // namespace

std::vector<double> inverse_frequencies(const RopeConfig& rope) {
  std::vector<double> freqs(size_t(rope.dim / 2));
  for (size_t i = 0; i < freqs.size(); ++i) {
    freqs[i] = std::pow(rope.theta, -double(2 * i) / rope.dim);
    if (i < rope.freq_factors.size()) freqs[i] /= rope.freq_factors[i];
  }
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (double& f : freqs) f /= rope.factor;
      break;
    case RopeScaling::kLlama3:
      scale_llama3(rope, freqs);
      break;
    case RopeScaling::kYarn:
      scale_yarn(rope, freqs);
      break;
  }
  return freqs;
}

const FamilyTraits* find_family(std::span<const FamilyTraits> families,
                                std::string_view FamilyTraits::*field, std::string_view name) {
  for (const FamilyTraits& family : families)
    if (family.*field == name && !name.empty()) return &family;
  return nullptr;
}

Status unknown_family(std::span<const FamilyTraits> families, std::string_view FamilyTraits::*field,
                      std::string_view name) {
  std::string known;
  for (const FamilyTraits& family : families)
    if (!(family.*field).empty()) known += (known.empty() ? "" : ", ") + std::string(family.*field);
  return unsupported("the model's architecture is " + quote(name) + "; supported: " + known);
}

std::optional<RopeScaling> parse_rope_scaling(std::string_view name) {
  if (name == "none" || name == "default") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "llama3") return RopeScaling::kLlama3;
  if (name == "yarn" || name == "deepseek_yarn") return RopeScaling::kYarn;
  return std::nullopt;
}

namespace {

Status finish_rope(const RopeExtras& extras, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  if (rope.dim % 2 != 0 || rope.dim > config.head_dim)
    return data_loss(
        "rope dimensions are " + std::to_string(rope.dim) +
        ", expected an even number up to head_dim = " + std::to_string(config.head_dim));
  if (rope.scaling == RopeScaling::kNone) rope.factor = 1;
  const bool had_original = rope.original_max_positions > 0;
  if (rope.scaling == RopeScaling::kLlama3) {
    if (!had_original)
      return data_loss("rope scaling llama3 needs original_max_position_embeddings");
    if (!(rope.high_freq_factor > rope.low_freq_factor))
      return data_loss("rope scaling llama3 needs high_freq_factor above low_freq_factor");
  }
  if (!had_original) rope.original_max_positions = config.max_position_embeddings;
  if (rope.scaling == RopeScaling::kYarn) {
    if (!(rope.beta_fast > rope.beta_slow))
      return data_loss("rope scaling yarn needs beta_fast above beta_slow");
    if (extras.attention_factor)
      rope.attention_factor = *extras.attention_factor;
    else if (extras.mscale != 0 && extras.mscale_all_dim != 0)
      rope.attention_factor =
          yarn_mscale(rope.factor, extras.mscale) / yarn_mscale(rope.factor, extras.mscale_all_dim);
    else
      rope.attention_factor = yarn_mscale(rope.factor, 1);
  }
  config.max_model_len = derive_max_model_len(rope, config.max_position_embeddings);
  if (rope.scaling == RopeScaling::kNone || rope.scaling == RopeScaling::kLinear)
    rope.original_max_positions = 0;
  return {};
}

}  // namespace

// max_position_embeddings has two uses in published files. Some leave it at the trained length
// beside a scaling that reaches further (Qwen2.5 and 3 with YaRN: 32768 or 40960, original 32768,
// factor 4, for 131072 tokens); others give the reach itself (DeepSeek: 163840, original 4096,
// factor 40). Twice the original or more is taken for the latter. Multiplying there again is the
// classic mistake.
int32_t derive_max_model_len(const RopeConfig& rope, int32_t max_position_embeddings) {
  if (rope.scaling == RopeScaling::kNone || rope.scaling == RopeScaling::kLlama3)
    return max_position_embeddings;
  const double covered = rope.original_max_positions * rope.factor;
  const bool extended = max_position_embeddings / 2 >= rope.original_max_positions;
  const double limit = extended ? std::min(covered, double(max_position_embeddings)) : covered;
  return int32_t(std::clamp(limit, 1.0, double(kMaxPositions)));
}

Status finish_moe(ModelConfig& config) {
  MoeConfig& m = config.moe;
  if (m.num_experts == 0 || std::find(m.layers.begin(), m.layers.end(), true) == m.layers.end()) {
    m = {};
    return {};
  }
  const auto n = [](int64_t v) { return std::to_string(v); };
  if (int64_t{m.num_experts} * config.num_layers > kMaxExpertTensors)
    return data_loss(n(m.num_experts) + " experts in " + n(config.num_layers) +
                     " layers are more than " + n(kMaxExpertTensors) + " together");
  if (m.num_groups <= 1) {
    m.num_groups = m.groups_per_token = 1;
    m.group_top2 = false;
  }
  if (m.num_experts % m.num_groups != 0)
    return data_loss(n(m.num_experts) + " experts do not divide into " + n(m.num_groups) +
                     " groups");
  if (m.groups_per_token > m.num_groups)
    return data_loss("a token chooses from " + n(m.groups_per_token) + " groups, there are " +
                     n(m.num_groups));
  const int32_t each = m.num_experts / m.num_groups;
  if (m.group_top2 && each < 2)
    return data_loss("groups of one expert have no two best: " + n(m.num_groups) + " groups of " +
                     n(m.num_experts) + " experts");
  if (m.experts_per_token > each * m.groups_per_token)
    return data_loss("a token has " + n(m.experts_per_token) + " experts, but its " +
                     n(m.groups_per_token) + " groups hold " + n(each * m.groups_per_token));
  return {};
}

Status finish_config(const RopeExtras& extras, ModelConfig& config) {
  const auto n = [](int64_t v) { return std::to_string(v); };
  if (config.num_heads % config.num_kv_heads != 0)
    return data_loss(n(config.num_heads) + " attention heads do not divide into " +
                     n(config.num_kv_heads) + " kv heads");
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_heads != 0)
      return data_loss("hidden size " + n(config.hidden_size) + " does not divide into " +
                       n(config.num_heads) + " heads and no head_dim is given");
    config.head_dim = config.hidden_size / config.num_heads;
    if (config.head_dim > kMaxHeadDim)
      return data_loss("head_dim " + n(config.head_dim) + " is above " + n(kMaxHeadDim));
  }
  if (config.v_head_dim == 0) config.v_head_dim = config.head_dim;
  if (!config.has_mla() && config.v_head_dim != config.head_dim)
    return unsupported("heads of " + n(config.head_dim) + " for keys and of " +
                       n(config.v_head_dim) + " for values: they have to be alike");
  if (config.rope.dim == 0) config.rope.dim = config.head_dim;
  if (config.attention_scale == 0) {
    config.attention_scale = 1.0 / std::sqrt(config.head_dim);
    // DeepSeek applies YaRN's temperature to the whole product, not to its rotated part alone.
    if (config.has_mla() && config.rope.scaling != RopeScaling::kNone && extras.mscale_all_dim != 0)
      config.attention_scale *= std::pow(yarn_mscale(config.rope.factor, extras.mscale_all_dim), 2);
  }
  ATTUNE_RETURN_IF_ERROR(finish_moe(config));
  const auto in_vocab = [&](TokenId id) { return id >= 0 && id < config.vocab_size; };
  if (config.bos_token_id != -1 && !in_vocab(config.bos_token_id))
    return data_loss("bos_token_id " + n(config.bos_token_id) + " is outside the vocabulary of " +
                     n(config.vocab_size));
  for (TokenId id : config.eos_token_ids)
    if (!in_vocab(id))
      return data_loss("eos_token_id " + n(id) + " is outside the vocabulary of " +
                       n(config.vocab_size));
  // Nothing pads here; files of the first Llama say -1 or one past the vocabulary.
  if (!in_vocab(config.pad_token_id)) config.pad_token_id = -1;
  return finish_rope(extras, config);
}

}  // namespace attune::formats
