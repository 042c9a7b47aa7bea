#include "model/family.h"

namespace attune::model {
namespace {

// Yang et al., arXiv:2407.10671: Llama with biases on q, k and v.
const RegisterFamily registered{{
    .traits = {.name = "qwen2",
               .gguf_architecture = "qwen2",
               .hf_architecture = "Qwen2ForCausalLM",
               .qkv_bias = true,
               .sliding_window = true},
    .description = "Qwen2, Qwen2.5",
}};

}  // namespace
}  // namespace attune::model
