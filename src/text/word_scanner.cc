#include "text/word_scanner.h"

#include <algorithm>

#include "text/unicode.h"

namespace attune::text {
namespace {

constexpr int kAnyCount = 1 << 30;

// The alternatives of a pattern, tried in this order at each place:
//   's|'t|'re|'ve|'m|'ll|'d                  contractions
//   [!-/:-@\[-`{-~][A-Za-z]+                 punctuation_word
//   PREFIX?LETTERS+                          prefix: one space, or one character not in
//   `prefix_not`, \r or \n NUMBERS{1,max_numbers}                   with ` ?` in front when
//   spaced_numbers
//    ?SYMBOLS+[\r\n]*                        symbols: in `symbols`, or (0) not in LETTERS, numbers
//    and spaces
//   \s*[\r\n]+                               newlines, together with [\r\n]* above
//   \s+(?!\S)|\s+
struct Rules {
  bool contractions = true;
  bool any_case = true;
  bool punctuation_word = false;
  uint8_t letters = kLetter;
  bool space_prefix = false;
  uint8_t prefix_not = kLetter | kNumber;
  int max_numbers = 1;
  bool spaced_numbers = false;
  uint8_t symbols = 0;
  uint8_t symbols_not = kSpace | kLetter | kNumber;
  bool newlines = true;
};

constexpr Rules kGpt2Rules{.any_case = false,
                           .space_prefix = true,
                           .max_numbers = kAnyCount,
                           .spaced_numbers = true,
                           .newlines = false};
constexpr Rules kLlama3Rules{.max_numbers = 3};
constexpr Rules kQwen2Rules{};
constexpr Rules kQwen35Rules{.letters = kLetter | kMark,
                             .symbols_not = kSpace | kLetter | kMark | kNumber};
constexpr Rules kDeepSeekV3Rules{.contractions = false,
                                 .punctuation_word = true,
                                 .letters = kLetter | kMark,
                                 .prefix_not = kLetter | kPunctuation | kSymbol,
                                 .max_numbers = 0,
                                 .symbols = kPunctuation | kSymbol};

struct Here {
  char32_t code = 0;
  uint32_t size = 0;
  uint8_t bits = 0;  // 0 also past the end
};
inline Here look(std::string_view text, size_t at) {
  if (at >= text.size()) return {};
  const Char c = char_at(text, at);
  return {c.code, c.size, char_class(c.code)};
}
inline bool is_newline(char32_t c) {
  return c == '\r' || c == '\n';
}
inline bool is_ascii_letter(char32_t c) {
  return (c | 0x20) - 'a' < 26;
}
inline bool is_ascii_punctuation(char32_t c) {
  return c - '!' < 15 || c - ':' < 7 || c - '[' < 6 || c - '{' < 4;
}

// The bytes of 's, 't, 're, 've, 'm, 'll, 'd at text[at], or 0.
size_t contraction(std::string_view text, size_t at, bool any_case) {
  auto letter = [&](size_t i) -> char {
    if (at + i >= text.size()) return 0;
    const char c = text[at + i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    default:
      break;
  }
  // U+017F, the long s, equals s without case.
  return any_case && text.substr(at + 1, 2) == "\xC5\xBF" ? 3 : 0;
}

// The end of the run of characters with any of `bits` from `at`, of at most `max` characters.
inline size_t run_of(std::string_view text, size_t at, uint8_t bits, int max = kAnyCount) {
  for (; max > 0; --max) {
    const Here c = look(text, at);
    if (!(c.bits & bits)) break;
    at += c.size;
  }
  return at;
}

template <Rules R>
inline bool is_symbol(const Here& c) {
  return c.size != 0 && (R.symbols ? (c.bits & R.symbols) != 0 : !(c.bits & R.symbols_not));
}

template <Rules R>
size_t symbols(std::string_view text, size_t at) {
  for (Here c = look(text, at); is_symbol<R>(c); c = look(text, at)) at += c.size;
  while (R.newlines && at < text.size() && is_newline(static_cast<unsigned char>(text[at]))) ++at;
  return at;
}

// text[at] is white space: up to its last line break, or all but the character before a word.
template <Rules R>
size_t white_space(std::string_view text, size_t at) {
  size_t end = at, after_newline = 0, last = at;
  for (Here c = look(text, at); c.bits & kSpace; c = look(text, end)) {
    last = end;
    end += c.size;
    if (is_newline(c.code)) after_newline = end;
  }
  if (R.newlines && after_newline != 0) return after_newline;
  return end == text.size() || last == at ? end : last;
}

template <Rules R>
bool begins_nothing(const Here& c, const Here& next) {
  const bool word = (c.bits & R.letters) || (!(c.bits & R.prefix_not) && (next.bits & R.letters));
  return !word && !is_symbol<R>(c) && !(c.bits & kSpace);
}

template <Rules R>
size_t scan(std::string_view text, size_t at) {
  const Here first = look(text, at);
  const size_t after = at + first.size;
  if (R.contractions && first.code == '\'') {
    if (const size_t size = contraction(text, at, R.any_case)) return at + size;
  }
  if (first.bits & R.letters) return run_of(text, after, R.letters);
  const Here next = look(text, after);
  if (R.punctuation_word && is_ascii_punctuation(first.code) && is_ascii_letter(next.code)) {
    size_t end = after;
    while (end < text.size() && is_ascii_letter(static_cast<unsigned char>(text[end]))) ++end;
    return end;
  }
  const bool prefix =
      R.space_prefix ? first.code == ' ' : !(first.bits & R.prefix_not) && !is_newline(first.code);
  if (prefix && (next.bits & R.letters)) return run_of(text, after, R.letters);
  if (R.max_numbers > 0 && (first.bits & kNumber)) return run_of(text, at, kNumber, R.max_numbers);
  if (R.spaced_numbers && first.code == ' ' && (next.bits & kNumber))
    return run_of(text, after, kNumber);
  if (is_symbol<R>(first) || (first.code == ' ' && is_symbol<R>(next)))
    return symbols<R>(text, after);
  if (first.bits & kSpace) return white_space<R>(text, at);
  // Nothing matches here: the stretch goes on to where something does.
  size_t end = after;
  for (Here c = next; c.size != 0; c = look(text, end)) {
    if (!begins_nothing<R>(c, look(text, end + c.size))) break;
    end += c.size;
  }
  return end;
}

struct Known {
  std::string_view regex;
  WordPattern pattern;
};
constexpr Known kKnown[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     WordPattern::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordPattern::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordPattern::kQwen2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordPattern::kQwen35},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordPattern::kDeepSeekV3},
};

}  // namespace

WordPattern find_word_pattern(std::string_view regex) {
  // Files spell line breaks as the characters themselves or as escapes.
  std::string spelled;
  for (char c : regex) {
    if (c == '\r') {
      spelled += "\\r";
    } else if (c == '\n') {
      spelled += "\\n";
    } else {
      spelled += c;
    }
  }
  for (const Known& known : kKnown) {
    if (spelled == known.regex) return known.pattern;
  }
  return WordPattern::kNone;
}

std::string_view word_pattern_regex(WordPattern pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.regex;
  }
  return {};
}

WordScanner word_scanner(WordPattern pattern) {
  switch (pattern) {
    case WordPattern::kGpt2:
      return &scan<kGpt2Rules>;
    case WordPattern::kLlama3:
      return &scan<kLlama3Rules>;
    case WordPattern::kQwen2:
      return &scan<kQwen2Rules>;
    case WordPattern::kQwen35:
      return &scan<kQwen35Rules>;
    case WordPattern::kDeepSeekV3:
      return &scan<kDeepSeekV3Rules>;
    case WordPattern::kNone:
      break;
  }
  return nullptr;
}

}  // namespace attune::text
