#include "model/family.h"

namespace attune::model {

// DeepSeek-AI, arXiv:2405.04434: latent attention, experts with softmax scores. GGUF has one
// architecture for V2 and V3, whose files say how experts are scored.
const Family& deepseek_v2_family() {
  static const Family family{
      .traits = {.name = "deepseek_v2",
                 .gguf_architecture = "deepseek2",
                 .hf_architecture = "DeepseekV2ForCausalLM",
                 .gguf_rope = formats::RopeStyle::kInterleaved,
                 .hf_rope = formats::RopeStyle::kInterleaved,
                 .mla = true,
                 .moe = formats::MoeRule::kSoftmax},
      .description = "DeepSeek-V2, V2-Lite, V2.5",
  };
  return family;
}

}  // namespace attune::model
