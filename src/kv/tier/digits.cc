#include "kv/tier/digits.h"

#include <sys/random.h>

#include <array>

namespace attune::kv {

std::string hex_digits(std::span<const uint8_t> bytes) {
  std::string out;
  for (uint8_t byte : bytes) {
    out += kHexDigits[byte >> 4];
    out += kHexDigits[byte & 15];
  }
  return out;
}

std::optional<PageKey> parse_page_key(std::string_view digits) {
  PageKey key;
  if (digits.size() != 2 * key.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t digit = kHexDigits.find(digits[i]);
    if (digit == kHexDigits.npos) return std::nullopt;
    key.bytes[i / 2] = static_cast<uint8_t>(key.bytes[i / 2] << 4 | digit);
  }
  return key;
}

Result<std::string> random_hex_digits(int32_t bytes) {
  std::array<uint8_t, 32> random;
  if (::getrandom(random.data(), static_cast<size_t>(bytes), 0) != bytes)
    return io_error("the system gives no random numbers");
  return hex_digits(std::span(random).first(static_cast<size_t>(bytes)));
}

}  // namespace attune::kv
