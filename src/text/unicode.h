// What the tokenizers need to know of Unicode: UTF-8, character classes, NFC. All functions are
// pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace attune::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// --- UTF-8 ---

// The bytes at text[at]: one whole character, or a maximal invalid part (Unicode 16, section 3.9),
// or the beginning of a character that the text cuts short.
struct Utf8Step {
  enum Kind : uint8_t { kCharacter, kInvalid, kIncomplete } kind;
  uint8_t size;  // bytes, at least 1
};
Utf8Step utf8_step(std::string_view text, size_t at);

// A character of text known to be valid.
struct Char {
  char32_t code = 0;
  uint32_t size = 0;  // bytes
};
// REQUIRES: `text` is valid UTF-8, at < text.size() and a character begins there.
inline Char char_at(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const char32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  if (b < 0xE0) return {(b & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (b < 0xF0) return {(b & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu), 3};
  return {(b & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu),
          4};
}
// The same for the character that ends before `end` > 0.
inline Char char_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return char_at(text, at);
}
void append_utf8(char32_t code, std::string& out);

// The length of the longest valid beginning.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) {
  return valid_utf8_prefix(text) == text.size();
}

// Appends pending + bytes to `out` with U+FFFD for each maximal invalid part; an incomplete
// character at the end stays in `pending`. With an empty `pending` and valid bytes it is a plain
// append.
void append_lossy(std::string& pending, std::string_view bytes, std::string& out);
// Characters in valid UTF-8.
size_t count_characters(std::string_view text);

// --- classes ---

enum CharClass : uint8_t {
  kLetter = 1,        // \p{L}
  kMark = 2,          // \p{M}
  kNumber = 4,        // \p{N}
  kPunctuation = 8,   // \p{P}
  kSymbol = 16,       // \p{S}
  kSpace = 32,        // White_Space
  kNfcRelevant = 64,  // may change, or be changed by, NFC
};
uint8_t char_class(char32_t code);

// --- normalisation ---

// Canonical composition (Unicode Standard Annex 15). REQUIRES: valid UTF-8.
bool may_change_in_nfc(std::string_view text);
std::string nfc(std::string_view text);

}  // namespace attune::text
