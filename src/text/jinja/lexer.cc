#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace attune::text::jinja {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool digit_of_base(char c, int base) {
  if (base == 16) return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  return c >= '0' && c < '0' + std::min(base, 10);
}

std::string normalize(std::string_view source) {
  const std::string valid = valid_utf8(source);
  std::string out;
  out.reserve(valid.size());
  for (size_t i = 0; i < valid.size(); ++i) {
    if (valid[i] == '\r') {
      out += '\n';
      if (i + 1 < valid.size() && valid[i + 1] == '\n') ++i;
    } else {
      out += valid[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize(source)) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) data();
    push(Tok::kEnd);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(std::string message) {
    throw RenderError{Code::kInvalidArgument, std::move(message), false, line_};
  }
  std::string_view rest() const { return std::string_view(source_).substr(pos_); }
  bool at(std::string_view what) const { return rest().substr(0, what.size()) == what; }
  void advance(size_t n) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<ptrdiff_t>(pos_ + n), '\n'));
    pos_ += n;
  }
  size_t spaces_at(size_t pos) const {
    while (pos < source_.size()) {
      size_t next = pos;
      if (!is_space(next_char(source_, next))) break;
      pos = next;
    }
    return pos;
  }
  void skip_spaces() { advance(spaces_at(pos_) - pos_); }
  Token& push(Tok kind, std::string text = {}) {
    return tokens_.emplace_back(Token{kind, line_, std::move(text)});
  }

  void data();
  void push_data(size_t begin, size_t end, char sign, bool print);
  void comment();
  bool raw(size_t begin);
  void inside(Tok end_kind, std::string_view close);
  bool close(Tok end_kind, std::string_view mark);
  void close_tag_space(char sign);
  void inner_token();
  void number();
  void string();
  void op();
  std::string unescape(std::string_view body);
  void numeric_escape(std::string_view body, size_t& i, size_t digits, int base, std::string& out);

  const std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
  std::vector<char> brackets_;
};

// Text up to the next tag, then that tag whole.
void Lexer::data() {
  const size_t begin = pos_;
  size_t open = source_.find('{', begin);
  while (open != std::string::npos &&
         (open + 1 >= source_.size() || std::strchr("%{#", source_[open + 1]) == nullptr ||
          source_[open + 1] == '\0')) {
    open = source_.find('{', open + 1);
  }
  if (open == std::string::npos) {
    push_data(begin, source_.size(), '+', false);
    return;
  }
  const char kind = source_[open + 1];
  const char after = open + 2 < source_.size() ? source_[open + 2] : '\0';
  const char sign = after == '-' || after == '+' ? after : ' ';
  push_data(begin, open, sign, kind == '{');
  if (kind == '%' && raw(open)) return;
  advance(open + (sign == ' ' ? 2 : 3) - pos_);
  if (kind == '#') {
    comment();
  } else if (kind == '{') {
    push(Tok::kPrintBegin);
    inside(Tok::kPrintEnd, "}}");
  } else {
    push(Tok::kTagBegin);
    inside(Tok::kTagEnd, "%}");
  }
}

// The text before a tag, less the white space that the tag's sign or lstrip_blocks takes away.
void Lexer::push_data(size_t begin, size_t end, char sign, bool print) {
  size_t stop = end;
  if (sign == '-') {
    while (stop > begin) {
      size_t pos = previous_char(source_, stop);
      const size_t start = pos;
      if (!is_space(next_char(source_, pos))) break;
      stop = start;
    }
  } else if (sign != '+' && !print) {
    const size_t newline = end > begin ? source_.rfind('\n', end - 1) : std::string::npos;
    const bool has_line = newline != std::string::npos && newline >= begin;
    const size_t line_start = has_line ? newline + 1 : begin;
    const bool starts_line = has_line || begin == 0 || source_[begin - 1] == '\n';
    if (starts_line && spaces_at(line_start) >= end) stop = line_start;
  }
  if (stop > begin) push(Tok::kData, source_.substr(begin, stop - begin));
  advance(end - pos_);
}

// What a closing mark takes along: all white space after '-', one newline unless '+'.
void Lexer::close_tag_space(char sign) {
  if (sign == '-') {
    skip_spaces();
  } else if (sign != '+' && pos_ < source_.size() && source_[pos_] == '\n') {
    advance(1);
  }
}

void Lexer::comment() {
  const size_t end = source_.find("#}", pos_);
  if (end == std::string::npos) error("Missing end of comment tag");
  const char before = end > pos_ ? source_[end - 1] : ' ';
  advance(end + 2 - pos_);
  close_tag_space(before);
}

// {% raw %} ... {% endraw %}: false when the tag at `begin` is another one.
bool Lexer::raw(size_t begin) {
  const auto tag_end = [this](size_t from, std::string_view word, bool plus, char& sign) -> size_t {
    size_t at = from + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at = spaces_at(at);
    if (source_.compare(at, word.size(), word) != 0) return 0;
    at = spaces_at(at + word.size());
    sign = at < source_.size() ? source_[at] : ' ';
    if (sign == '-' || (plus && sign == '+')) ++at;
    return source_.compare(at, 2, "%}") == 0 ? at + 2 : 0;
  };
  char sign = ' ';
  const size_t body_tag = tag_end(begin, "raw", false, sign);
  if (body_tag == 0) return false;
  advance(body_tag - pos_);
  if (sign == '-') skip_spaces();
  const size_t body = pos_;
  for (size_t open = source_.find("{%", body); open != std::string::npos;
       open = source_.find("{%", open + 1)) {
    const size_t end = tag_end(open, "endraw", true, sign);
    if (end == 0) continue;
    const char strip = source_[open + 2];
    push_data(body, open, strip == '-' || strip == '+' ? strip : ' ', false);
    advance(end - pos_);
    close_tag_space(sign);
    return true;
  }
  error("Missing end of raw directive");
}

bool Lexer::close(Tok end_kind, std::string_view mark) {
  const bool signed_mark =
      (at("-") || (at("+") && end_kind == Tok::kTagEnd)) && rest().substr(1, 2) == mark;
  if (!signed_mark && !at(mark)) return false;
  const char sign = signed_mark ? source_[pos_] : ' ';
  push(end_kind);
  advance(signed_mark ? 3 : 2);
  if (end_kind == Tok::kTagEnd) {
    close_tag_space(sign);
  } else if (sign == '-') {
    skip_spaces();
  }
  return true;
}

void Lexer::inside(Tok end_kind, std::string_view mark) {
  const int opened = line_;
  while (true) {
    if (brackets_.empty() && close(end_kind, mark)) return;
    skip_spaces();
    if (pos_ >= source_.size()) {
      error("unexpected end of template: the tag opened in line " + std::to_string(opened) +
            " has no '" + std::string(mark) + "'");
    }
    if (brackets_.empty() && close(end_kind, mark)) return;
    inner_token();
  }
}

void Lexer::inner_token() {
  const char c = source_[pos_];
  if (is_digit(c)) return number();
  if (c == '\'' || c == '"') return string();
  if (is_word(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80) {
    size_t end = pos_;
    while (end < source_.size()) {
      size_t next = end;
      if (!is_word(next_char(source_, next))) break;
      end = next;
    }
    if (end == pos_) error("unexpected character");
    push(Tok::kName, source_.substr(pos_, end - pos_));
    return advance(end - pos_);
  }
  op();
}

// Digits may be grouped by single underscores; after a '.', as in `a.0.1`, a number is whole.
void Lexer::number() {
  const size_t begin = pos_;
  const auto digits = [this](size_t at, int base) {
    while (at < source_.size()) {
      if (digit_of_base(source_[at], base))
        ++at;
      else if (source_[at] == '_' && at + 1 < source_.size() &&
               digit_of_base(source_[at + 1], base))
        at += 2;
      else
        break;
    }
    return at;
  };
  const auto digit_at = [this](size_t at) { return at < source_.size() && is_digit(source_[at]); };
  int base = 10;
  if (source_[begin] == '0' && begin + 2 < source_.size()) {
    const char mark = static_cast<char>(source_[begin + 1] | 0x20);
    const int wanted = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    if (wanted != 10 && digit_of_base(source_[begin + 2], wanted)) base = wanted;
  }
  size_t end = digits(base == 10 ? begin : begin + 2, base);
  bool real = false;
  if (base == 10 && (begin == 0 || source_[begin - 1] != '.')) {
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
      end = digits(end + 1, 10);
      real = true;
    }
    if (end < source_.size() && (source_[end] | 0x20) == 'e') {
      const size_t sign =
          end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
      if (digit_at(end + 1 + sign)) {
        end = digits(end + 1 + sign, 10);
        real = true;
      }
    }
  }
  std::string plain =
      source_.substr(base == 10 ? begin : begin + 2, end - (base == 10 ? begin : begin + 2));
  std::erase(plain, '_');
  Token& token = push(real ? Tok::kFloat : Tok::kInt, plain);
  const char *from = plain.data(), *to = from + plain.size();
  const auto result =
      real ? std::from_chars(from, to, token.real) : std::from_chars(from, to, token.integer, base);
  if (result.ec != std::errc()) error("the number " + plain + " is out of range");
  if (!real && base == 10 && plain.size() > 1 && plain[0] == '0' && token.integer != 0) {
    error("leading zeros in the number " + plain);
  }
  advance(end - begin);
}

void Lexer::string() {
  const char quote = source_[pos_];
  size_t end = pos_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) error("a string has no closing " + std::string(1, quote));
  push(Tok::kString, unescape(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1)));
  advance(end + 1 - pos_);
}

void Lexer::numeric_escape(std::string_view body, size_t& i, size_t digits, int base,
                           std::string& out) {
  size_t n = 0;
  while (n < digits && i + n < body.size() && digit_of_base(body[i + n], base)) ++n;
  if (base == 16 && n < digits) error("truncated escape in a string");
  uint32_t value = 0;
  std::from_chars(body.data() + i, body.data() + i + n, value, base);
  if (value > 0x10FFFF) error("illegal Unicode character in a string");
  append_char(out, value);
  i += n;
}

std::string Lexer::unescape(std::string_view body) {
  std::string out;
  for (size_t i = 0; i < body.size();) {
    if (body[i] != '\\' || i + 1 >= body.size()) {
      out += body[i++];
      continue;
    }
    constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
    const char c = body[i + 1];
    i += 2;
    if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
      out += kTo[simple];
    } else if (c == 'x') {
      numeric_escape(body, i, 2, 16, out);
    } else if (c == 'u' || c == 'U') {
      numeric_escape(body, i, c == 'u' ? 4 : 8, 16, out);
    } else if (c >= '0' && c <= '7') {
      numeric_escape(body, --i, 3, 8, out);
    } else if (c == 'N') {
      error("\\N{...} escapes are not supported; use \\u");
    } else if (c != '\n') {
      out += '\\';
      out += c;
    }
  }
  return out;
}

void Lexer::op() {
  constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
  constexpr std::string_view kOne = "+-/*%~[](){}<>=.:|,;";
  for (const std::string_view two : kTwo) {
    if (at(two)) {
      push(Tok::kOp, std::string(two));
      return advance(2);
    }
  }
  const char c = source_[pos_];
  if (kOne.find(c) == std::string_view::npos)
    error(std::string("unexpected character '") + c + "'");
  if (c == '(' || c == '[' || c == '{') {
    brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
  } else if (c == ')' || c == ']' || c == '}') {
    if (brackets_.empty()) error(std::string("unexpected '") + c + "'");
    if (brackets_.back() != c) {
      error(std::string("unexpected '") + c + "', expected '" + brackets_.back() + "'");
    }
    brackets_.pop_back();
  }
  push(Tok::kOp, std::string(1, c));
  advance(1);
}

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case Tok::kData:
      return "text";
    case Tok::kPrintBegin:
      return "begin of print statement";
    case Tok::kPrintEnd:
      return "end of print statement";
    case Tok::kTagBegin:
      return "begin of statement block";
    case Tok::kTagEnd:
      return "end of statement block";
    case Tok::kString:
      return "string";
    case Tok::kInt:
      return "integer";
    case Tok::kFloat:
      return "float";
    case Tok::kEnd:
      return "end of template";
    default:
      return token.text;
  }
}

}  // namespace attune::text::jinja
