#include "text/loaders.h"
#include "text/unicode.h"

namespace attune::text {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet[static_cast<size_t>(byte)] =
        stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return alphabet;
}

// All of the alphabet lies below U+0144.
std::array<int16_t, 0x144> make_inverse() {
  std::array<int16_t, 0x144> inverse;
  inverse.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte)
    inverse[byte_alphabet()[byte]] = static_cast<int16_t>(byte);
  return inverse;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  static const std::array<char32_t, 256> alphabet = make_alphabet();
  return alphabet;
}

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  static const std::array<int16_t, 0x144> inverse = make_inverse();
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const Utf8Step step = utf8_step(spelling, at);
    if (step.kind != Utf8Step::kCharacter) return std::nullopt;
    const char32_t code = char_at(spelling, at).code;
    if (code >= inverse.size() || inverse[code] < 0) return std::nullopt;
    bytes += static_cast<char>(inverse[code]);
    at += step.size;
  }
  return bytes;
}

int byte_of_fallback_token(std::string_view s) {
  if (s.size() != 6 || !s.starts_with("<0x") || s[5] != '>') return -1;
  const int high = hex_digit(s[3]), low = hex_digit(s[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace attune::text
