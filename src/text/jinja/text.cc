#include "text/jinja/text.h"

#include <algorithm>
#include <iterator>

#include "text/jinja/case_tables.h"

namespace attune::text::jinja {

void Text::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_trusted_ = trusted;
    flips_.clear();
  } else if (trusted != last_trusted()) {
    flips_.push_back(bytes_.size());
  }
  bytes_.append(bytes);
}

void Text::append(const Text& other, size_t begin, size_t end) {
  if (&other == this) {  // appending to oneself must not read what grows
    append(other.slice(begin, end));
    return;
  }
  if (other.uniform()) {
    append(std::string_view(other.bytes_).substr(begin, end - begin), other.first_trusted_);
    return;
  }
  other.for_each_run(begin, end, [&](size_t from, size_t to, bool trusted) {
    append(std::string_view(other.bytes_).substr(from, to - from), trusted);
  });
}

void Text::append(Text&& other) {
  if (bytes_.empty()) {
    *this = std::move(other);
  } else {
    append(static_cast<const Text&>(other));
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

bool Text::trusted_at(size_t byte) const {
  const auto after = std::upper_bound(flips_.begin(), flips_.end(), byte);
  return first_trusted_ != ((after - flips_.begin()) % 2 == 1);
}

namespace {
constexpr char32_t kReplacement = 0xFFFD;
}

char32_t next_char(std::string_view text, size_t& pos) {
  const auto lead = static_cast<unsigned char>(text[pos++]);
  if (lead < 0x80) return lead;
  const int extra = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC2 ? 1 : 0;
  if (extra == 0 || lead > 0xF4 || text.size() - pos < static_cast<size_t>(extra)) {
    return kReplacement;
  }
  char32_t c = lead & (0x3F >> extra);
  for (int i = 0; i < extra; ++i) {
    const auto byte = static_cast<unsigned char>(text[pos + i]);
    if ((byte & 0xC0) != 0x80) return kReplacement;
    c = (c << 6) | (byte & 0x3F);
  }
  constexpr char32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (c < kSmallest[extra] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return kReplacement;
  pos += extra;
  return c;
}

void append_char(std::string& out, char32_t c) {
  if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = kReplacement;
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

namespace {
bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}
}  // namespace

size_t count_chars(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char b) { return !continues(b); }));
}

size_t byte_of_char(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; pos < text.size(); ++pos) {
    if (continues(text[pos])) continue;
    if (index-- == 0) break;
  }
  return pos;
}

size_t previous_char(std::string_view text, size_t pos) {
  do --pos;
  while (pos > 0 && continues(text[pos]));
  return pos;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  size_t copied = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      ++pos;
    } else if (next_char(text, pos) == kReplacement &&
               pos == begin + 1) {  // the true U+FFFD is longer
      out.append(text.substr(copied, begin - copied));
      append_char(out, kReplacement);
      copied = pos;
    }
  }
  out.append(text.substr(copied));
  return out;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_word(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  if (c <= 0xFF)
    return c >= 0xC0 ? c != 0xD7 && c != 0xF7
                     : c == 0xAA || c == 0xB5 || c == 0xBA || c == 0xB2 || c == 0xB3 || c == 0xB9 ||
                           (c >= 0xBC && c <= 0xBE);
  return !is_space(c) && !(c >= 0x2010 && c <= 0x206F) && !(c >= 0x3001 && c <= 0x3004) &&
         !(c >= 0xFF00 && c <= 0xFF0F);
}

namespace {

// The mapped code point, or `c` itself.
char32_t map_case(char32_t c, const CaseRange* ranges, size_t count) {
  const CaseRange* end = ranges + count;
  const CaseRange* next = std::upper_bound(
      ranges, end, c, [](char32_t value, const CaseRange& r) { return value < r.first; });
  if (next == ranges) return c;
  const CaseRange& r = *(next - 1);
  if (c > r.last || (c - r.first) % r.stride != 0) return c;
  return static_cast<char32_t>(static_cast<int32_t>(c) + r.delta);
}

const char* long_upper(char32_t c) {
  const LongCase* end = kLongUpper + kLongUpperCount;
  const LongCase* found = std::lower_bound(
      kLongUpper, end, c, [](const LongCase& entry, char32_t value) { return entry.from < value; });
  return found != end && found->from == c ? found->to : nullptr;
}

char32_t simple_upper(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
  return map_case(c, kUpperRanges, kUpperRangeCount);
}

char32_t simple_lower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return map_case(c, kLowerRanges, kLowerRangeCount);
}

}  // namespace

bool is_upper(char32_t c) {
  return simple_lower(c) != c;
}
bool is_lower(char32_t c) {
  return simple_upper(c) != c || long_upper(c) != nullptr;
}

std::string to_upper(char32_t c) {
  if (c >= 0x80) {
    if (const char* several = long_upper(c)) return several;
  }
  std::string out;
  append_char(out, simple_upper(c));
  return out;
}

std::string to_lower(char32_t c) {
  std::string out;
  if (c == 0x130) return "i\xcc\x87";  // the one lower case of two code points
  append_char(out, simple_lower(c));
  return out;
}

}  // namespace attune::text::jinja
