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
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-"
    "ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-"
    "ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const std::string kDeepSeekCjk = "[一-龥ࠀ-一가-퟿]+";

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
     .regexes = {"[\\r\\n]", kDeepSeekLlmLetters, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$",
                 kDeepSeekCjk, "\\p{N}"}},
    {.name = "deepseek-r1-qwen", .regexes = kQwen2},
    {.name = "deepseek-v3",
     .regexes = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", kDeepSeekV3Regex}},
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
    {.name = "qwen35", .regexes = {kQwen35Regex}, .nfc = true},
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
