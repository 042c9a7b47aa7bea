#include "formats/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace attune::formats {
namespace {

constexpr int kMaxDepth = 256;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Well-formed UTF-8 (Unicode 15, table 3-7). Of the sequence at `p`: its length and whether it is
// whole and valid; of an invalid one, the length of its longest valid beginning (at least 1).
struct Utf8 {
  int length;
  bool valid;
};
Utf8 utf8_at(const char* p, const char* end) {
  const auto byte = [&](int i) { return static_cast<unsigned char>(p[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xc2 || lead > 0xf4) return {1, false};
  const int length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  unsigned low = 0x80, high = 0xbf;  // of the second byte
  if (lead == 0xe0) low = 0xa0;      // overlong
  if (lead == 0xed) high = 0x9f;     // surrogates
  if (lead == 0xf0) low = 0x90;      // overlong
  if (lead == 0xf4) high = 0x8f;     // above U+10FFFF
  for (int i = 1; i < length; ++i) {
    if (p + i == end || byte(i) < low || byte(i) > high) return {i, false};
    low = 0x80, high = 0xbf;
  }
  return {length, true};
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += {char(0xc0 | (c >> 6)), char(0x80 | (c & 0x3f))};
  } else if (c < 0x10000) {
    out += {char(0xe0 | (c >> 12)), char(0x80 | ((c >> 6) & 0x3f)), char(0x80 | (c & 0x3f))};
  } else {
    out += {char(0xf0 | (c >> 18)), char(0x80 | ((c >> 12) & 0x3f)), char(0x80 | ((c >> 6) & 0x3f)),
            char(0x80 | (c & 0x3f))};
  }
}

// Recursive descent over RFC 8259, at most kMaxDepth deep. The first error wins and ends it.
class Parser {
 public:
  explicit Parser(std::string_view text)
      : begin_(text.data()), p_(text.data()), end_(text.data() + text.size()) {}

  Result<Json> run() {
    Json root;
    if (parse_value(root, 0)) {
      skip_space();
      if (p_ != end_) fail("text after the document's end");
    }
    if (!error_.ok()) return error_;
    return root;
  }

 private:
  bool fail_at(const char* where, const std::string& what) {
    if (error_.ok())
      error_ = invalid_argument("JSON: " + what + " at byte " + std::to_string(where - begin_));
    return false;
  }
  bool fail(const std::string& what) { return fail_at(p_, what); }

  void skip_space() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }
  // Skips white space; true if `c` comes next (and was taken).
  bool take(char c) {
    skip_space();
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }

  bool parse_value(Json& out, int depth) {
    skip_space();
    if (p_ == end_) return fail("the text ends where a value is expected");
    switch (*p_) {
      case '{':
        return parse_object(out, depth + 1);
      case '[':
        return parse_array(out, depth + 1);
      case '"': {
        std::string s;
        if (!parse_string(s)) return false;
        out = Json(std::move(s));
        return true;
      }
      case 't':
        return parse_word("true", Json(true), out);
      case 'f':
        return parse_word("false", Json(false), out);
      case 'n':
        return parse_word("null", Json(nullptr), out);
      default:
        return parse_number(out);
    }
  }

  bool parse_word(std::string_view word, Json value, Json& out) {
    if (std::string_view(p_, size_t(end_ - p_)).substr(0, word.size()) != word)
      return fail("not a value");
    p_ += word.size();
    out = std::move(value);
    return true;
  }

  bool parse_array(Json& out, int depth) {
    if (depth > kMaxDepth) return fail("nesting deeper than " + std::to_string(kMaxDepth));
    ++p_;
    Json::Array items;
    if (!take(']')) {
      do {
        if (!parse_value(items.emplace_back(), depth)) return false;
      } while (take(','));
      if (!take(']')) return fail("',' or ']' expected");
    }
    out = Json(std::move(items));
    return true;
  }

  bool parse_object(Json& out, int depth) {
    if (depth > kMaxDepth) return fail("nesting deeper than " + std::to_string(kMaxDepth));
    const char* start = p_++;
    Json::Object members;
    if (!take('}')) {
      do {
        skip_space();
        if (p_ == end_ || *p_ != '"') return fail("a key in quotes expected");
        auto& [key, value] = members.emplace_back();
        if (!parse_string(key)) return false;
        if (!take(':')) return fail("':' expected");
        if (!parse_value(value, depth)) return false;
      } while (take(','));
      if (!take('}')) return fail("',' or '}' expected");
      if (!check_unique(members, start)) return false;
    }
    out = Json(std::move(members));
    return true;
  }

  // By sorting hashes: a hash table could be driven to quadratic time by chosen keys.
  bool check_unique(const Json::Object& members, const char* start) {
    if (members.size() < 2) return true;
    using Hashed = std::pair<size_t, const std::string*>;
    std::vector<Hashed> keys;
    keys.reserve(members.size());
    for (const auto& [key, value] : members)
      keys.emplace_back(std::hash<std::string_view>{}(key), &key);
    std::sort(keys.begin(), keys.end(), [](const Hashed& a, const Hashed& b) {
      return a.first != b.first ? a.first < b.first : *a.second < *b.second;
    });
    const auto twin = std::adjacent_find(keys.begin(), keys.end(), [](Hashed a, Hashed b) {
      return a.first == b.first && *a.second == *b.second;
    });
    if (twin == keys.end()) return true;
    return fail_at(start, "the key " + Json(*twin->second).dump() + " appears twice in the object");
  }

  bool parse_string(std::string& out) {
    ++p_;  // the quote
    for (;;) {
      const char* run = p_;
      while (p_ != end_ && *p_ != '"' && *p_ != '\\' && static_cast<unsigned char>(*p_) >= 0x20) {
        if (static_cast<signed char>(*p_) >= 0) {
          ++p_;
          continue;
        }
        const Utf8 u = utf8_at(p_, end_);
        if (!u.valid) return fail("invalid UTF-8");
        p_ += u.length;
      }
      out.append(run, p_);
      if (p_ == end_) return fail("the text ends inside a string");
      if (*p_ == '"') {
        ++p_;
        return true;
      }
      if (*p_ != '\\') return fail("an unescaped control character in a string");
      if (!parse_escape(out)) return false;
    }
  }

  bool parse_escape(std::string& out) {
    const char* start = p_++;
    if (p_ == end_) return fail("the text ends inside a string");
    switch (*p_++) {
      case '"':
        out += '"';
        return true;
      case '\\':
        out += '\\';
        return true;
      case '/':
        out += '/';
        return true;
      case 'b':
        out += '\b';
        return true;
      case 'f':
        out += '\f';
        return true;
      case 'n':
        out += '\n';
        return true;
      case 'r':
        out += '\r';
        return true;
      case 't':
        out += '\t';
        return true;
      case 'u':
        break;
      default:
        return fail_at(start, "an unknown escape");
    }
    uint32_t c = 0, low = 0;
    if (!parse_hex4(c)) return false;
    if (c >= 0xd800 && c < 0xe000) {
      const bool paired = c < 0xdc00 && end_ - p_ >= 2 && p_[0] == '\\' && p_[1] == 'u';
      if (paired) p_ += 2;
      if (!paired || !parse_hex4(low) || low < 0xdc00 || low > 0xdfff)
        return fail_at(start, "half of a surrogate pair");
      c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(out, c);
    return true;
  }

  bool parse_hex4(uint32_t& out) {
    if (end_ - p_ < 4) return fail("\\u needs four hexadecimal digits");
    const auto [rest, ec] = std::from_chars(p_, p_ + 4, out, 16);
    if (rest != p_ + 4 || ec != std::errc()) return fail("\\u needs four hexadecimal digits");
    p_ += 4;
    return true;
  }

  bool parse_number(Json& out) {
    const char* start = p_;
    if (*p_ == '-') ++p_;
    if (p_ == end_ || !is_digit(*p_)) return fail_at(start, "not a value");
    const char* digits = p_;
    skip_digits();
    if (*digits == '0' && p_ - digits > 1) return fail_at(start, "a number with a leading zero");
    bool integer = true;
    if (p_ != end_ && *p_ == '.') {
      integer = false;
      ++p_;
      if (!skip_digits()) return fail("a digit expected after the decimal point");
    }
    if (p_ != end_ && (*p_ == 'e' || *p_ == 'E')) {
      integer = false;
      ++p_;
      if (p_ != end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      if (!skip_digits()) return fail("a digit expected in the exponent");
    }
    if (int64_t i = 0; integer && std::from_chars(start, p_, i).ec == std::errc()) {
      out = Json(i);
      return true;
    }
    double d = 0;
    if (std::from_chars(start, p_, d).ec == std::errc::result_out_of_range) {
      if (exponent10(digits) > 0) return fail_at(start, "a number too large for a double");
      d = *start == '-' ? -0.0 : 0.0;
    }
    out = Json(d);
    return true;
  }

  bool skip_digits() {
    const char* start = p_;
    while (p_ != end_ && is_digit(*p_)) ++p_;
    return p_ != start;
  }

  // Decimal magnitude of the number [digits, p_): n for 0.ddd * 10^n with the first d not zero.
  // Only its sign is used, and only for numbers outside a double's range.
  int64_t exponent10(const char* digits) const {
    const char* e = std::find_if(digits, p_, [](char c) { return c == 'e' || c == 'E'; });
    const char* point = std::find(digits, e, '.');
    const char* first = std::find_if(digits, e, [](char c) { return c >= '1' && c <= '9'; });
    int64_t exponent = first < point ? point - first : point - first + 1;
    if (e == p_) return exponent;
    const char* number = e + 1 + (e[1] == '+');
    int64_t written = 0;
    if (std::from_chars(number, p_, written).ec != std::errc())
      return *number == '-' ? std::numeric_limits<int64_t>::min()
                            : std::numeric_limits<int64_t>::max();
    constexpr int64_t kFar = int64_t{1} << 60;
    return exponent + std::clamp(written, -kFar, kFar);
  }

  const char* begin_;
  const char* p_;
  const char* end_;
  Status error_;
};

class Writer {
 public:
  explicit Writer(bool pretty) : pretty_(pretty) {}

  void write(const Json& value) {
    if (value.is_null()) {
      out += "null";
    } else if (value.is_bool()) {
      out += value.as_bool() ? "true" : "false";
    } else if (value.is_int()) {
      char buffer[24];
      out.append(buffer, std::to_chars(buffer, std::end(buffer), value.as_int()).ptr);
    } else if (value.is_number()) {
      write_double(value.as_double());
    } else if (value.is_string()) {
      write_string(value.as_string());
    } else if (value.is_array()) {
      write_list('[', ']', value.as_array(), [&](const Json& item) { write(item); });
    } else {
      write_list('{', '}', value.as_object(), [&](const Json::Member& member) {
        write_string(member.first);
        out += pretty_ ? ": " : ":";
        write(member.second);
      });
    }
  }

  std::string out;

 private:
  template <typename List, typename Each>
  void write_list(char open, char close, const List& list, Each each) {
    out += open;
    depth_ += 2;
    bool first = true;
    for (const auto& item : list) {
      if (!first) out += ',';
      first = false;
      if (pretty_) out.append("\n").append(depth_, ' ');
      each(item);
    }
    depth_ -= 2;
    if (pretty_ && !first) out.append("\n").append(depth_, ' ');
    out += close;
  }

  void write_double(double d) {
    if (!std::isfinite(d)) {
      out += "null";
      return;
    }
    char buffer[40];
    const char* end = std::to_chars(buffer, std::end(buffer), d).ptr;
    const std::string_view text(buffer, size_t(end - buffer));
    out += text;
    if (text.find_first_of(".e") == text.npos) out += ".0";
  }

  void write_string(std::string_view s) {
    out += '"';
    const char* end = s.data() + s.size();
    for (const char* p = s.data(); p != end;) {
      const char* run = p;
      while (p != end && *p >= 0x20 && *p != '"' && *p != '\\') ++p;
      out.append(run, p);
      if (p == end) break;
      if (static_cast<signed char>(*p) >= 0) {
        write_escaped(*p++);
        continue;
      }
      const Utf8 u = utf8_at(p, end);
      if (u.valid)
        out.append(p, size_t(u.length));
      else
        out += "\xef\xbf\xbd";
      p += u.length;
    }
    out += '"';
  }

  void write_escaped(char c) {
    switch (c) {
      case '"':
        out += "\\\"";
        return;
      case '\\':
        out += "\\\\";
        return;
      case '\b':
        out += "\\b";
        return;
      case '\f':
        out += "\\f";
        return;
      case '\n':
        out += "\\n";
        return;
      case '\r':
        out += "\\r";
        return;
      case '\t':
        out += "\\t";
        return;
      default:
        break;
    }
    constexpr char kHex[] = "0123456789abcdef";
    out += "\\u00";
    out += kHex[(c >> 4) & 15];
    out += kHex[c & 15];
  }

  bool pretty_;
  size_t depth_ = 0;
};

std::string dump_as(const Json& value, bool pretty) {
  Writer writer(pretty);
  writer.write(value);
  return std::move(writer.out);
}

}  // namespace

const char* Json::type_name() const {
  constexpr const char* kNames[] = {"null",   "boolean", "integer", "number",
                                    "string", "array",   "object"};
  return kNames[rep_.index()];
}

const Json* Json::find(std::string_view key) const {
  const auto* object = std::get_if<Object>(&rep_);
  if (object == nullptr) return nullptr;
  for (const Member& member : *object)
    if (member.first == key) return &member.second;
  return nullptr;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) rep_ = Object();
  ATTUNE_CHECK(is_object());
  Object& object = as_object();
  for (Member& member : object)
    if (member.first == key) return member.second = std::move(value);
  return object.emplace_back(std::string(key), std::move(value)).second;
}

Json& Json::push(Json value) {
  if (is_null()) rep_ = Array();
  ATTUNE_CHECK(is_array());
  return as_array().emplace_back(std::move(value));
}

std::string Json::dump() const {
  return dump_as(*this, false);
}
std::string Json::dump_pretty() const {
  return dump_as(*this, true);
}

Result<Json> parse_json(std::string_view text) {
  return Parser(text).run();
}

}  // namespace attune::formats
