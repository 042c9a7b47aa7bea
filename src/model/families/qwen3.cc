#include "model/family.h"

namespace attune::model {

// Yang et al., arXiv:2505.09388: no biases, an RMS norm on every q and k head.
const Family& qwen3_family() {
  static const Family family{
      .traits = {.name = "qwen3",
                 .gguf_architecture = "qwen3",
                 .hf_architecture = "Qwen3ForCausalLM",
                 .qk_norm = true,
                 .window_rule = formats::WindowRule::kSwitched},
      .description = "Qwen3 (dense)",
  };
  return family;
}

}  // namespace attune::model
