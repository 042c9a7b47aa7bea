#include "model/family.h"

namespace attune::model {
namespace {

// Yang et al., arXiv:2505.09388: no biases, an RMS norm on every q and k head.
const RegisterFamily registered{{
    .traits = {.name = "qwen3",
               .gguf_architecture = "qwen3",
               .hf_architecture = "Qwen3ForCausalLM",
               .qk_norm = true,
               .sliding_window = true},
    .description = "Qwen3 (dense)",
}};

}  // namespace
}  // namespace attune::model
