#include "model/family.h"

namespace attune::model {
namespace {

// Jiang et al., arXiv:2310.06825: Llama with a sliding window. Its GGUF files mostly say "llama".
const RegisterFamily registered{{
    .traits = {.name = "mistral",
               .gguf_architecture = "mistral",
               .hf_architecture = "MistralForCausalLM",
               .gguf_rope = formats::RopeStyle::kInterleaved,
               .sliding_window = true},
    .description = "Mistral 7B and successors",
}};

}  // namespace
}  // namespace attune::model
