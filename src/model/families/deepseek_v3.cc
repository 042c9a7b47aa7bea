#include "model/family.h"

namespace attune::model {

// DeepSeek-AI, arXiv:2412.19437: V2 with sigmoid scores and a bias that balances the experts.
const Family& deepseek_v3_family() {
  static const Family family{
      .traits = {.name = "deepseek_v3",
                 .gguf_architecture = "",
                 .hf_architecture = "DeepseekV3ForCausalLM",
                 .hf_rope = formats::RopeStyle::kInterleaved,
                 .mla = true,
                 .moe = formats::MoeRule::kSigmoid},
      .description = "DeepSeek-V3, R1, Moonlight",
  };
  return family;
}

}  // namespace attune::model
