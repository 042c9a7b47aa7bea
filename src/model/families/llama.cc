#include "model/family.h"

namespace attune::model {

// Touvron et al., arXiv:2302.13971; Llama 3 adds grouped queries and its own rope scaling.
const Family& llama_family() {
  static const Family family{
      .traits = {.name = "llama",
                 .gguf_architecture = "llama",
                 .hf_architecture = "LlamaForCausalLM",
                 .gguf_rope = formats::RopeStyle::kInterleaved},
      .description = "Llama 2 and 3, SmolLM2",
  };
  return family;
}

}  // namespace attune::model
