// The regular expressions are those of the models' own tokenizer.json files.
#include <algorithm>

#include "text/pre_tokenizer.h"

namespace attune::text {
namespace {

const std::string kGpt2Regex(word_pattern_regex(WordPattern::kGpt2));
const std::string kLlama3Regex(word_pattern_regex(WordPattern::kLlama3));
const std::string kQwen2Regex(word_pattern_regex(WordPattern::kQwen2));
const std::string kQwen35Regex(word_pattern_regex(WordPattern::kQwen35));
const std::string kDeepSeekV3Regex(word_pattern_regex(WordPattern::kDeepSeekV3));
const std::string kTekkenRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kGpt4oRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The cased letters that DeepSeek LLM keeps together, with the white space in front.
const std::string kDeepSeekLlmLetters =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386})"
    R"(\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F})"
    R"(\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA})"
    R"(\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15})"
    R"(\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B})"
    R"(\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})"
    R"(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943}]+)";
const std::string kDeepSeekCjk = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";

using Regexes = std::vector<std::string>;
const Regexes kGpt2 = {kGpt2Regex};
const Regexes kDigitsGpt2 = {"\\p{N}", kGpt2Regex};
const Regexes kLlama3 = {kLlama3Regex};
const Regexes kQwen2 = {kQwen2Regex};

const PreTokenizerPreset kPresets[] = {
    {.name = "codeshell", .regexes = kDigitsGpt2},
    {.name = "command-r", .regexes = kDigitsGpt2, .nfc = true},
    {.name = "dbrx", .regexes = kLlama3},
    {.name = "deepseek-coder",
     .regexes = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kDeepSeekCjk, "\\p{N}"}},
    {.name = "deepseek-llm",
     .regexes =
         {"[\\r\\n]", kDeepSeekLlmLetters,
          R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
          "\\s+$", kDeepSeekCjk, "\\p{N}"}},
    {.name = "deepseek-r1-qwen", .regexes = kQwen2},
    {.name = "deepseek-v3",
     .regexes = {"\\p{N}{1,3}", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
                 kDeepSeekV3Regex}},
    {.name = "falcon3", .regexes = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "glm4", .regexes = kLlama3, .ignore_merges = true},
    {.name = "gpt-2", .regexes = kGpt2},
    {.name = "gpt-4o", .regexes = {kGpt4oRegex}},
    {.name = "llama-bpe", .regexes = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .regexes = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .regexes = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama4", .regexes = {kGpt4oRegex}},
    {.name = "megrez", .regexes = kQwen2},
    {.name = "mpt", .regexes = kGpt2, .nfc = true},
    {.name = "olmo", .regexes = kGpt2, .nfc = true},
    {.name = "phi-2", .regexes = kGpt2},
    {.name = "qwen2", .regexes = kQwen2, .nfc = true},
    {.name = "qwen35", .regexes = {kQwen35Regex}},
    {.name = "refact", .regexes = kDigitsGpt2},
    {.name = "smaug-bpe", .regexes = kLlama3},
    {.name = "smollm", .regexes = kDigitsGpt2},
    {.name = "stablelm2", .regexes = kQwen2},
    {.name = "starcoder", .regexes = kDigitsGpt2},
    {.name = "tekken", .regexes = {kTekkenRegex}, .ignore_merges = true, .add_bos = true},
};

}  // namespace

const PreTokenizerPreset* find_pre_tokenizer_preset(std::string_view name) {
  auto it = std::find_if(std::begin(kPresets), std::end(kPresets),
                         [&](auto& p) { return p.name == name; });
  return it == std::end(kPresets) ? nullptr : it;
}

std::string pre_tokenizer_preset_names() {
  std::string names;
  for (const PreTokenizerPreset& preset : kPresets) {
    if (!names.empty()) names += ", ";
    names += preset.name;
  }
  return names;
}

}  // namespace attune::text
