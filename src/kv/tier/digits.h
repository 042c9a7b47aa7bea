// Keys and salts as hexadecimal digits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "attune/status.h"
#include "kv/layout/page_key.h"

namespace attune::kv {

inline constexpr std::string_view kHexDigits = "0123456789abcdef";

std::string hex_digits(std::span<const uint8_t> bytes);
inline std::string hex_digits(const PageKey& key) {
  return hex_digits(std::span(key.bytes));
}
std::optional<PageKey> parse_page_key(std::string_view digits);
// `bytes` unguessable bytes, 32 at most. Errors: io_error.
Result<std::string> random_hex_digits(int32_t bytes);

}  // namespace attune::kv
