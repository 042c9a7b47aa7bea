#include "model/family.h"

namespace attune::model {

// Yang et al., arXiv:2407.10671: Llama with biases on q, k and v.
const Family& qwen2_family() {
  static const Family family{
      .traits = {.name = "qwen2",
                 .gguf_architecture = "qwen2",
                 .hf_architecture = "Qwen2ForCausalLM",
                 .qkv_bias = true,
                 .window_rule = formats::WindowRule::kSwitched},
      .description = "Qwen2, Qwen2.5",
  };
  return family;
}

}  // namespace attune::model
