// For tests: families as src/model has them, and the readers called with these.
#pragma once

#include "formats/weight_source.h"

namespace attune::formats {

inline constexpr FamilyTraits kTestFamilies[] = {
    {.name = "llama",
     .gguf_architecture = "llama",
     .hf_architecture = "LlamaForCausalLM",
     .gguf_rope = RopeStyle::kInterleaved},
    {.name = "mistral",
     .gguf_architecture = "mistral",
     .hf_architecture = "MistralForCausalLM",
     .gguf_rope = RopeStyle::kInterleaved,
     .window_rule = WindowRule::kAllLayers},
    {.name = "qwen2",
     .gguf_architecture = "qwen2",
     .hf_architecture = "Qwen2ForCausalLM",
     .qkv_bias = true,
     .window_rule = WindowRule::kSwitched},
    {.name = "qwen3",
     .gguf_architecture = "qwen3",
     .hf_architecture = "Qwen3ForCausalLM",
     .qk_norm = true,
     .window_rule = WindowRule::kSwitched},
    {.name = "qwen3_moe",
     .gguf_architecture = "qwen3moe",
     .hf_architecture = "Qwen3MoeForCausalLM",
     .qk_norm = true,
     .window_rule = WindowRule::kSwitchedAll,
     .moe = MoeRule::kQwen3},
    {.name = "deepseek_v2",
     .gguf_architecture = "deepseek2",
     .hf_architecture = "DeepseekV2ForCausalLM",
     .gguf_rope = RopeStyle::kInterleaved,
     .hf_rope = RopeStyle::kInterleaved,
     .mla = true,
     .moe = MoeRule::kSoftmax},
    {.name = "deepseek_v3",
     .gguf_architecture = "",
     .hf_architecture = "DeepseekV3ForCausalLM",
     .hf_rope = RopeStyle::kInterleaved,
     .mla = true,
     .moe = MoeRule::kSigmoid},
};

inline Result<ModelConfig> model_config_from_gguf(const GgufFile& gguf) {
  return model_config_from_gguf(gguf, kTestFamilies);
}
inline Result<ModelConfig> model_config_from_hf(const Json& config, const Json* generation) {
  return model_config_from_hf(config, generation, kTestFamilies);
}
inline Result<LoadedModel> open_model(const std::string& path, std::string_view load_format,
                                      uint64_t seed) {
  return open_model(path, load_format, seed, kTestFamilies);
}

}  // namespace attune::formats
