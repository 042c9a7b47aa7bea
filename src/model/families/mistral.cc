#include "model/family.h"

namespace attune::model {

// Jiang et al., arXiv:2310.06825: Llama with a sliding window. Its GGUF files mostly say "llama".
const Family& mistral_family() {
  static const Family family{
      .traits = {.name = "mistral",
                 .gguf_architecture = "mistral",
                 .hf_architecture = "MistralForCausalLM",
                 .gguf_rope = formats::RopeStyle::kInterleaved,
                 .window_rule = formats::WindowRule::kAllLayers},
      .description = "Mistral 7B and successors",
  };
  return family;
}

}  // namespace attune::model
