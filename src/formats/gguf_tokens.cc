#include "formats/gguf_tokens.h"

#include <algorithm>
#include <string_view>

namespace attune::formats {
namespace {

constexpr std::string_view kTurnEnds[] = {
    "<|eot_id|>",                               // Llama 3
    "<|eom_id|>",                               // Llama 3.1
    "<|im_end|>",                               // ChatML
    "<|end|>",                                  // Phi 3
    "<end_of_turn>",                            // Gemma
    "<|endoftext|>",                            // GPT-2 and its kin
    "<|end_of_text|>",                          // Llama 3, Granite
    "<|return|>",                               // gpt-oss
    "<|call|>",                                 // gpt-oss
    "<end_of_utterance>",                       // SmolVLM
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",  // DeepSeek
};
constexpr int32_t kUnknownType = 2, kControlType = 3;

}  // namespace

std::vector<TokenId> turn_end_tokens(const GgufFile& file) {
  const auto tokens = file.get_strings("tokenizer.ggml.tokens");
  const auto types = file.get_ints("tokenizer.ggml.token_type");
  if (!tokens.ok() || !types.ok() || tokens->size() != types->size()) return {};
  std::vector<TokenId> ends;
  bool returns = false, calls = false;
  for (size_t i = 0; i < tokens->size(); ++i) {
    const int32_t type = (*types)[i];
    const std::string_view text = (*tokens)[i];
    if (type != kControlType && type != kUnknownType) continue;
    if (std::ranges::find(kTurnEnds, text) == std::end(kTurnEnds)) continue;
    ends.push_back(static_cast<TokenId>(i));
    returns |= text == "<|return|>";
    calls |= text == "<|call|>";
  }
  // Where these two end a turn, <|end|> only ends one of its messages.
  if (returns && calls)
    std::erase_if(ends, [&](TokenId id) { return (*tokens)[size_t(id)] == "<|end|>"; });
  return ends;
}

}  // namespace attune::formats
