#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

namespace attune::text {
namespace {

struct Run {
  char32_t first;
  uint8_t value;
};
#include "text/unicode_classes.inc"

uint8_t class_by_search(char32_t code) {
  auto after = std::upper_bound(std::begin(kClassRuns), std::end(kClassRuns), code,
                                [](char32_t c, const Run& run) { return c < run.first; });
  return std::prev(after)->value;
}

// The basic plane laid flat: nearly all text lies there.
std::array<uint8_t, 0x10000> flat_classes() {
  std::array<uint8_t, 0x10000> flat{};
  for (size_t i = 0; i < std::size(kClassRuns); ++i) {
    const char32_t first = kClassRuns[i].first;
    if (first >= flat.size()) break;
    const size_t last = i + 1 < std::size(kClassRuns)
                            ? std::min<size_t>(kClassRuns[i + 1].first, flat.size())
                            : flat.size();
    std::memset(flat.data() + first, kClassRuns[i].value, last - first);
  }
  return flat;
}
const std::array<uint8_t, 0x10000> kFlatClasses = flat_classes();

}  // namespace

uint8_t char_class(char32_t code) {
  return code < 0x10000 ? kFlatClasses[code] : class_by_search(code);
}

Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {Utf8Step::kCharacter, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Step::kInvalid, 1};
  const uint8_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte's range depends on the first (Unicode 16, table 3-7).
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (uint8_t i = 1; i < size; ++i) {
    if (at + i >= text.size()) return {Utf8Step::kIncomplete, i};
    const auto b = static_cast<unsigned char>(text[at + i]);
    if (b < low || b > high) return {Utf8Step::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::kCharacter, size};
}

void append_utf8(char32_t c, std::string& out) {
  auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    tail(12), tail(6), tail(0);
  }
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    const Utf8Step step = utf8_step(text, at);
    if (step.kind != Utf8Step::kCharacter) break;
    at += step.size;
  }
  return at;
}

void append_lossy(std::string& pending, std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending.empty()) {
    joined = std::move(pending);
    joined += bytes;
    pending.clear();
    bytes = joined;
  }
  while (!bytes.empty()) {
    const size_t valid = valid_utf8_prefix(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    const Utf8Step step = utf8_step(bytes, 0);
    if (step.kind == Utf8Step::kIncomplete) {
      pending = bytes;
      break;
    }
    out += kReplacement;
    bytes.remove_prefix(step.size);
  }
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace attune::text
