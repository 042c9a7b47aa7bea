#include "model/family.h"

namespace attune::model {

// Yang et al., arXiv:2505.09388: attention as in the dense models, routed experts without shared
// ones. Windows are as in Qwen3MoeModel of transformers.
const Family& qwen3_moe_family() {
  static const Family family{
      .traits = {.name = "qwen3_moe",
                 .gguf_architecture = "qwen3moe",
                 .hf_architecture = "Qwen3MoeForCausalLM",
                 .qk_norm = true,
                 .window_rule = formats::WindowRule::kSwitchedAll,
                 .moe = formats::MoeRule::kQwen3},
      .description = "Qwen3-MoE (30B-A3B, 235B-A22B)",
  };
  return family;
}

}  // namespace attune::model
