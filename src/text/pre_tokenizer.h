// From normalised text to the pieces inside which merges may happen.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attune/status.h"
#include "text/regex.h"
#include "text/word_scanner.h"

namespace attune::text {

// What happens to the text between matches and to the matches themselves (tokenizers'
// SplitDelimiterBehavior).
enum class SplitBehavior : uint8_t {
  kIsolated,
  kRemoved,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

// One step; it cuts every piece that the step before it left. Copyable.
struct SplitStep {
  enum class Kind : uint8_t {
    kWords,          // words: a known pattern
    kRegex,          // regex, behavior, invert
    kNumbers,        // every \p{N} on its own
    kNumberRuns,     // runs of \p{N}
    kTrailingSpace,  // white space at the end of a piece: \s+$ in linear time
    kMarkers,        // a new piece at each U+2581 (Metaspace)
    kMarkerRuns,     // a new piece at each run of U+2581
  };
  Kind kind = Kind::kWords;
  WordPattern words = WordPattern::kNone;
  std::shared_ptr<const Regex> regex = nullptr;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};

// The step for a Split of this regular expression: by hand where the expression is known, else by
// PCRE2.
Result<SplitStep> split_by_regex(const std::string& regex,
                                 SplitBehavior behavior = SplitBehavior::kIsolated,
                                 bool invert = false);

// Replaces `pieces` by what the step cuts them into; empty pieces are dropped.
void apply_split(const SplitStep& step, std::vector<std::string_view>& pieces);

// A pre-tokenizer that GGUF files name in tokenizer.ggml.pre.
struct PreTokenizerPreset {
  std::string_view name;
  std::vector<std::string> regexes;  // applied one after the other, isolated
  bool ignore_merges = false;
  bool add_bos = false;  // unless the file says otherwise
  bool nfc = false;
};
// Null when unknown.
const PreTokenizerPreset* find_pre_tokenizer_preset(std::string_view name);
std::string pre_tokenizer_preset_names();  // "deepseek-coder, deepseek-llm, ..."

inline constexpr std::string_view kMarker = "\xE2\x96\x81";  // U+2581, SentencePiece's space

}  // namespace attune::text
