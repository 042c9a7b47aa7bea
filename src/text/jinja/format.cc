// `text % values` and str.format. What a value prints keeps its own origin.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/interpreter.h"
#include "text/jinja/text_ops.h"

namespace attune::text::jinja {

namespace {

constexpr int64_t kMaxPrecision = 500;

struct Spec {
  char fill_ascii = ' ';
  std::string fill = " ";
  char align = '\0';  // < > ^ =, or none given
  char sign = '-';
  bool alternate = false, comma = false, zero = false;
  int64_t width = 0, precision = -1;
  char type = '\0';
};

void group_thousands(std::string& digits) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = whole; at > 3;) digits.insert(at -= 3, ",");
}

// The sign and digits of a number, without padding.
std::string float_digits(double v, const Spec& spec) {
  if (spec.precision > kMaxPrecision) fail_limit("a format's precision is larger than 500");
  const double size = std::fabs(v);
  const bool percent = spec.type == '%';
  if (std::isnan(v)) return percent ? "nan%" : "nan";
  if (std::isinf(v)) return percent ? "inf%" : "inf";
  if (spec.type == '\0' && spec.precision < 0) return float_repr(size);
  char form[16];
  const char type = percent ? 'f' : spec.type == '\0' || spec.type == 'n' ? 'g' : spec.type;
  std::snprintf(form, sizeof form, spec.alternate ? "%%#.*%c" : "%%.*%c", type);
  std::string out(1200, '\0');
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  out.resize(static_cast<size_t>(
      std::snprintf(out.data(), out.size(), form, precision, percent ? size * 100 : size)));
  if (percent) out += '%';
  return out;
}

std::string integer_digits(int64_t v, const Spec& spec) {
  uint64_t rest = v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  const char type = spec.type;
  const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  const char* const alphabet = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do out += alphabet[rest % base];
  while ((rest /= base) != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string sign_of(bool negative, char sign) {
  return negative ? "-" : sign == '-' ? "" : std::string(1, sign);
}

// Sign, prefix and digits at the spec's width.
Text padded_number(std::string head, const std::string& digits, const Spec& spec, bool trusted,
                   Meter& meter) {
  const auto size = static_cast<int64_t>(head.size() + digits.size());
  if (spec.zero || spec.align == '=') {
    const char fill = spec.align == '=' ? spec.fill_ascii : '0';
    if (spec.width > size) {
      if (static_cast<size_t>(spec.width) > meter.max_memory())
        fail_limit("a padded number is too large");
      head.append(static_cast<size_t>(spec.width - size), fill);
    }
    return Text(head + digits, trusted);
  }
  const Side side = spec.align == '<'   ? Side::kLeft
                    : spec.align == '^' ? Side::kBoth
                                        : Side::kRight;
  return pad(Text(head + digits, trusted), spec.width, spec.fill, side, meter);
}

Text cut_text(const Text& text, int64_t chars) {
  return chars < 0 ? text : text.slice(0, byte_of_char(text.view(), static_cast<size_t>(chars)));
}

// --- printf style

class PercentFormat {
 public:
  PercentFormat(Interpreter& in, const Text& format, const Value& values)
      : in_(in), format_(format), values_(values) {
    if (values.is(Type::kList) && values.list()->kind == ListKind::kTuple) list_ = values.list();
  }

  Text run() {
    const std::string_view view = format_.view();
    while (at_ < view.size()) {
      const size_t percent = std::min(view.find('%', at_), view.size());
      out_.append(format_, at_, percent);
      at_ = percent;
      if (at_ < view.size()) conversion();
      if (out_.size() > in_.meter.max_memory()) fail_limit("a formatted text is too large");
    }
    const size_t given = list_ != nullptr ? list_->size() : 1;
    if (!mapped_ && next_ < given && !values_.is(Type::kDict))
      fail("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) fail("incomplete format");
    return format_.view()[at_];
  }
  Value argument() {
    const size_t given = list_ != nullptr ? list_->size() : 1;
    if (next_ >= given) fail("not enough arguments for format string");
    return list_ != nullptr ? list_->items[next_++] : (++next_, values_);
  }
  int64_t number() {
    if (peek() == '*') {
      ++at_;
      const Value v = argument();
      if (!v.is_integral()) fail("* wants int");
      return v.as_int();
    }
    int64_t out = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      out = out * 10 + (peek() - '0');
      if (out > INT32_MAX) fail("width too big");
    }
    return out;
  }
  void conversion();
  Text convert(char type, const Value& v, Spec& spec);
  Text convert_number(char type, const Value& v, Spec& spec);

  Interpreter& in_;
  const Text& format_;
  const Value& values_;
  List* list_ = nullptr;
  size_t at_ = 0, next_ = 0;
  bool mapped_ = false;
  Text out_;
};

void PercentFormat::conversion() {
  in_.meter.step();
  ++at_;
  Value named;
  if (peek() == '(') {
    const size_t close = format_.view().find(')', at_);
    if (close == std::string_view::npos) fail("incomplete format key");
    if (!values_.is(Type::kDict)) fail("format requires a mapping");
    const std::string key(format_.view().substr(at_ + 1, close - at_ - 1));
    const Value* found = values_.dict()->find(key);
    if (found == nullptr) fail("the format's key '" + key + "' is not in the mapping");
    named = *found;
    mapped_ = true;
    at_ = close + 1;
  }
  Spec spec;
  for (;; ++at_) {
    const char c = peek();
    if (c == '-')
      spec.align = '<';
    else if (c == '+')
      spec.sign = '+';
    else if (c == ' ')
      spec.sign = spec.sign == '+' ? '+' : ' ';
    else if (c == '#')
      spec.alternate = true;
    else if (c == '0')
      spec.zero = true;
    else
      break;
  }
  spec.width = number();
  if (spec.width < 0) {
    spec.align = '<';
    if (__builtin_sub_overflow(int64_t{0}, spec.width, &spec.width)) fail("width too big");
  }
  if (peek() == '.') {
    ++at_;
    spec.precision = std::max<int64_t>(number(), 0);
  }
  while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
  const char type = peek();
  ++at_;
  if (type == '%') {
    out_.append("%", true);
    return;
  }
  if (spec.align == '<') spec.zero = false;
  out_.append(convert(type, named.missing() ? argument() : named, spec));
}

Text PercentFormat::convert(char type, const Value& v, Spec& spec) {
  const Side side = spec.align == '<' ? Side::kLeft : Side::kRight;
  if (type == 's')
    return pad(cut_text(in_.text_of(v), spec.precision), spec.width, " ", side, in_.meter);
  if (type == 'r' || type == 'a') {
    std::string shown;
    append_repr(shown, v, in_.meter);
    return pad(cut_text(Text(std::move(shown), false), spec.precision), spec.width, " ", side,
               in_.meter);
  }
  if (type == 'c') {
    if (v.is_string() && length_of(v) == 1) return pad(v.text(), spec.width, " ", side, in_.meter);
    if (!v.is_integral() || v.as_int() < 0 || v.as_int() > 0x10FFFF)
      fail("%c requires int or char");
    std::string out;
    append_char(out, static_cast<char32_t>(v.as_int()));
    return pad(Text(std::move(out), false), spec.width, " ", side, in_.meter);
  }
  return convert_number(type, v, spec);
}

Text PercentFormat::convert_number(char type, const Value& v, Spec& spec) {
  if (v.is_undefined()) fail(v.undefined_reason());
  spec.type = type == 'i' || type == 'u' ? 'd' : type;
  if (spec.type == 'd' || spec.type == 'x' || spec.type == 'X' || spec.type == 'o') {
    if (!v.is_number() || (spec.type != 'd' && !v.is_integral())) {
      fail(std::string("%") + type + " format: a number is required, not " + type_name(v));
    }
    if (!v.is_integral() && !(std::fabs(v.as_double()) < 9.2e18))
      fail("%d format: out of the 64-bit range");
    const int64_t whole = v.is_integral() ? v.as_int() : static_cast<int64_t>(v.as_double());
    std::string digits = integer_digits(whole, spec);
    if (spec.precision > kMaxPrecision) fail_limit("a format's precision is larger than 500");
    if (spec.precision > static_cast<int64_t>(digits.size()))
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    std::string head = sign_of(whole < 0, spec.sign);
    if (spec.alternate && spec.type != 'd') head += std::string("0") + spec.type;
    return padded_number(head, digits, spec, true, in_.meter);
  }
  if (std::string_view("eEfFgG").find(spec.type) == std::string_view::npos) {
    fail(std::string("unsupported format character '") + type + "'");
  }
  if (!v.is_number()) fail(std::string("must be real number, not ") + type_name(v));
  return padded_number(sign_of(std::signbit(v.as_double()), spec.sign),
                       float_digits(v.as_double(), spec), spec, true, in_.meter);
}

// --- str.format

class BraceFormat {
 public:
  BraceFormat(Interpreter& in, const CallArgs& args) : in_(in), args_(args) {}
  Text run(const Text& format, int depth);

 private:
  void field(const Text& format, size_t begin, size_t end, int depth, Text& out);
  Value lookup(std::string_view path);
  Value base(std::string_view name);
  Spec parse(std::string_view text);
  Text present(const Value& v, const Text& spec_text);

  Interpreter& in_;
  const CallArgs& args_;
  int64_t next_ = 0;
  bool automatic_ = false, manual_ = false;
};

Text BraceFormat::run(const Text& format, int depth) {
  if (depth > 2) fail("Max string recursion exceeded");
  const std::string_view view = format.view();
  Text out;
  for (size_t at = 0; at < view.size();) {
    const size_t brace = std::min(view.find_first_of("{}", at), view.size());
    out.append(format, at, brace);
    if (brace == view.size()) break;
    if (brace + 1 < view.size() && view[brace + 1] == view[brace]) {
      out.append(format, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    if (view[brace] == '}') fail("Single '}' encountered in format string");
    size_t end = brace + 1;
    for (int open = 1; end < view.size(); ++end) {
      open += view[end] == '{' ? 1 : view[end] == '}' ? -1 : 0;
      if (open == 0) break;
    }
    if (end >= view.size()) fail("expected '}' before end of string");
    field(format, brace + 1, end, depth, out);
    at = end + 1;
    if (out.size() > in_.meter.max_memory()) fail_limit("a formatted text is too large");
  }
  return out;
}

void BraceFormat::field(const Text& format, size_t begin, size_t end, int depth, Text& out) {
  in_.meter.step();
  const std::string_view view = format.view().substr(begin, end - begin);
  size_t name_end = 0;
  for (bool bracket = false; name_end < view.size(); ++name_end) {
    const char c = view[name_end];
    if (c == '[') bracket = true;
    if (c == ']') bracket = false;
    if (!bracket && (c == '!' || c == ':')) break;
  }
  Value value = lookup(view.substr(0, name_end));
  size_t at = name_end;
  if (at < view.size() && view[at] == '!') {
    const char how = at + 1 < view.size() ? view[at + 1] : '\0';
    if (how == 'r' || how == 'a') {
      std::string shown;
      append_repr(shown, value, in_.meter);
      value = in_.str(std::move(shown), false);
    } else if (how == 's') {
      value = in_.str(in_.text_of(value));
    } else {
      fail("Unknown conversion specifier");
    }
    at += 2;
    if (at < view.size() && view[at] != ':') fail("expected ':' after conversion specifier");
  }
  const Text spec = at < view.size() ? run(format.slice(begin + at + 1, end), depth + 1) : Text();
  out.append(present(value, spec));
}

Value BraceFormat::base(std::string_view name) {
  int64_t index = 0;
  if (name.empty()) {
    automatic_ = true;
    index = next_++;
  } else if (name.find_first_not_of("0123456789") == name.npos && name.size() < 10) {
    manual_ = true;
    for (const char c : name) index = index * 10 + (c - '0');
  } else {
    for (const auto& [known, value] : args_.named) {
      if (known == name) return value;
    }
    fail("format(): no argument named '" + std::string(name) + "'");
  }
  if (automatic_ && manual_)
    fail("cannot switch between manual field specification and automatic field numbering");
  if (index >= static_cast<int64_t>(args_.positional.size())) {
    fail("Replacement index " + std::to_string(index) + " out of range for positional args tuple");
  }
  return args_.positional[static_cast<size_t>(index)];
}

Value BraceFormat::lookup(std::string_view path) {
  size_t at = std::min(path.find_first_of(".["), path.size());
  Value out = base(path.substr(0, at));
  while (at < path.size()) {
    const bool attribute = path[at] == '.';
    const size_t stop =
        attribute ? std::min(path.find_first_of(".[", at + 1), path.size()) : path.find(']', at);
    if (stop == std::string_view::npos) fail("Missing ']' in format string");
    const std::string_view name = path.substr(at + 1, stop - at - 1);
    if (name.empty()) fail("Empty attribute in format string");
    const bool digits = name.find_first_not_of("0123456789") == name.npos && name.size() < 10;
    if (attribute) {
      out = in_.attribute(out, name);
    } else {
      out = digits ? in_.item(out, Value::integer(std::stoi(std::string(name))))
                   : in_.item(out, name);
    }
    at = attribute ? stop : stop + 1;
  }
  return out;
}

Spec BraceFormat::parse(std::string_view text) {
  Spec out;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
  const auto number = [&] {
    int64_t n = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at) {
      n = n * 10 + (peek() - '0');
      if (n > INT32_MAX) fail("Too many decimal digits in format string");
    }
    return n;
  };
  size_t after_fill = 0;
  if (!text.empty()) next_char(text, after_fill);
  if (after_fill > 0 && after_fill < text.size() && is_align(text[after_fill])) {
    out.fill = text.substr(0, after_fill);
    out.fill_ascii = after_fill == 1 ? text[0] : ' ';
    out.align = text[after_fill];
    at = after_fill + 1;
  } else if (is_align(peek())) {
    out.align = text[at++];
  }
  if (peek() == '+' || peek() == '-' || peek() == ' ') out.sign = text[at++];
  if (peek() == '#') out.alternate = (++at, true);
  if (peek() == '0') {
    out.zero = out.align == '\0';
    if (out.align != '\0' && after_fill == 0) out.fill = "0";
    ++at;
  }
  out.width = number();
  if (peek() == ',' || peek() == '_') out.comma = text[at++] == ',';
  if (peek() == '.') {
    const size_t dot = at++;
    out.precision = number();
    if (at == dot + 1) fail("Format specifier missing precision");
  }
  if (at < text.size()) out.type = text[at++];
  if (at < text.size()) fail("Invalid format specifier '" + std::string(text) + "'");
  return out;
}

Text BraceFormat::present(const Value& v, const Text& spec_text) {
  if (spec_text.empty()) return in_.text_of(v);
  Spec spec = parse(spec_text.view());
  const auto unknown = [&] {
    fail(std::string("Unknown format code '") + spec.type + "' for object of type '" +
         type_name(v) + "'");
  };
  if (v.is_string() || v.is_undefined()) {
    if (spec.type != '\0' && spec.type != 's') unknown();
    if (spec.align == '=') fail("'=' alignment not allowed in string format specifier");
    const Side side = spec.align == '>'   ? Side::kRight
                      : spec.align == '^' ? Side::kBoth
                                          : Side::kLeft;
    return pad(cut_text(in_.text_of(v), spec.precision), spec.width, spec.zero ? "0" : spec.fill,
               side, in_.meter);
  }
  if (!v.is_number())
    fail(std::string("unsupported format string passed to ") + type_name(v) + ".__format__");
  const bool real =
      !v.is_integral() || std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (v.is_integral() && (!real || spec.type == '\0')) {
    if (std::string_view("dnbcoxX").find(spec.type) == std::string_view::npos && spec.type != '\0')
      unknown();
    if (spec.precision >= 0) fail("Precision not allowed in integer format specifier");
    std::string digits = integer_digits(v.as_int(), spec);
    if (spec.comma) group_thousands(digits);
    std::string head = sign_of(v.as_int() < 0, spec.sign);
    if (spec.alternate && std::string_view("xXob").find(spec.type) != std::string_view::npos)
      head += std::string("0") + spec.type;
    return padded_number(head, digits, spec, true, in_.meter);
  }
  if (spec.type != '\0' && std::string_view("eEfFgGn%").find(spec.type) == std::string_view::npos)
    unknown();
  std::string digits = float_digits(v.as_double(), spec);
  if (spec.comma) group_thousands(digits);
  return padded_number(sign_of(std::signbit(v.as_double()), spec.sign), digits, spec, true,
                       in_.meter);
}

}  // namespace

Text format_percent(Interpreter& in, const Text& format, const Value& values) {
  return PercentFormat(in, format, values).run();
}

Text format_braces(Interpreter& in, const Text& format, const CallArgs& args) {
  return BraceFormat(in, args).run(format, 0);
}

}  // namespace attune::text::jinja
