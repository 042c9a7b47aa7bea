// The word patterns that most byte-level vocabularies use, by hand: the same pieces as their
// regular expressions give, in time linear in the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace attune::text {

enum class WordPattern : uint8_t { kNone, kGpt2, kLlama3, kQwen2, kQwen35, kDeepSeekV3 };

// The pattern that a regular expression spells, letter for letter; kNone for any other.
WordPattern find_word_pattern(std::string_view regex);
// The regular expression of a pattern other than kNone.
std::string_view word_pattern_regex(WordPattern pattern);

// The end of the piece that begins at text[at]: a match, or a stretch that nothing matches.
// REQUIRES: valid UTF-8, at < text.size() at a character, pattern != kNone.
using WordScanner = size_t (*)(std::string_view text, size_t at);
WordScanner word_scanner(WordPattern pattern);

}  // namespace attune::text
