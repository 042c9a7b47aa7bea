// Filters of strings, numbers and JSON.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja/builtins.h"
#include "text/jinja/text_ops.h"

namespace attune::text::jinja {

namespace {

void no_arguments(const char* what, const CallArgs& args) {
  if (!args.positional.empty() || !args.named.empty())
    fail(std::string(what) + " takes no arguments");
}

template <Text (*convert)(const Text&)>
Value convert_text(Interpreter& in, const Value& v, CallArgs& args) {
  no_arguments("this filter", args);
  const Text text = in.text_of(v);
  in.meter.step(text.size() / 64);
  return in.str(convert(text));
}

Value trim(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("trim", {"chars"}, 0, args);
  const Text text = in.text_of(v);
  if (!a.given(0) || a[0].is_none()) return in.str(strip(text, nullptr));
  const Text chars = a.text(0);
  const std::string_view view = chars.view();
  return in.str(strip(text, &view));
}

Value replace_filter(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("replace", {"old", "new", "count"}, 2, args);
  const int64_t count = a.given(2) && a[2].is_none() ? -1 : a.integer(2, -1);
  return in.str(replace(in.text_of(v), in.text_of(a[0]).view(), in.text_of(a[1]), count, in.meter));
}

Value string(Interpreter& in, const Value& v, CallArgs& args) {
  no_arguments("string", args);
  return v.is_string() ? v : in.str(in.text_of(v));
}

Value safe(Interpreter& in, const Value& v, CallArgs& args) {
  no_arguments("safe", args);
  return Value::string(in.meter, in.text_of(v), true);
}

Value escape(Interpreter& in, const Value& v, CallArgs& args) {
  no_arguments("escape", args);
  return v.is_markup() ? v : Value::string(in.meter, escape_html(in.text_of(v)), true);
}

Value indent(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("indent", {"width", "first", "blank"}, 0, args);
  if (!v.is_string()) fail(std::string("indent needs a string, not ") + type_name(v));
  Text by;
  if (a.given(0) && a[0].is_string()) {
    by = a[0].text();
  } else {
    by = pad(Text(), a.integer(0, 4), " ", Side::kLeft, in.meter);
  }
  Text text = v.text();
  text.append("\n", true);  // so that a last empty line counts as one, as in jinja2
  const std::vector<Text> lines = split_lines(text, false);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", true);
    const bool wanted = i == 0 ? a.flag(1, false) : a.flag(2, false) || !lines[i].empty();
    if (wanted) out.append(by);
    out.append(lines[i]);
    if (out.size() > in.meter.max_memory()) fail_limit("an indented text is too large");
  }
  in.meter.step(lines.size() + out.size() / 64);
  return in.str(std::move(out));
}

Value center(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("center", {"width"}, 0, args);
  return in.str(pad(in.text_of(v), a.integer(0, 80), " ", Side::kBoth, in.meter));
}

Value truncate(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("truncate", {"length", "killwords", "end", "leeway"}, 0, args);
  const Text text = in.text_of(v);
  const Text end = a.given(2) ? a.text(2) : Text("...", true);
  const int64_t length = a.integer(0, 255),
                leeway = a.given(3) && !a[3].is_none() ? a.integer(3, 5) : 5;
  const auto end_length = static_cast<int64_t>(count_chars(end.view()));
  if (length < end_length || leeway < 0)
    fail("truncate: the length is shorter than the end, or the leeway is negative");
  if (static_cast<int64_t>(count_chars(text.view())) - leeway <= length) return in.str(text);
  Text out = text.slice(0, byte_of_char(text.view(), static_cast<size_t>(length - end_length)));
  if (!a.flag(1, false)) {
    const size_t blank = out.view().rfind(' ');
    if (blank != std::string_view::npos) out = out.slice(0, blank);
  }
  out.append(end);
  return in.str(std::move(out));
}

Value wordcount(Interpreter& in, const Value& v, CallArgs& args) {
  no_arguments("wordcount", args);
  const Text text = in.text_of(v);
  int64_t words = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const bool word = is_word(next_char(text.view(), pos));
    words += word && !inside;
    inside = word;
  }
  return Value::integer(words);
}

Value urlencode(Interpreter& in, const Value& v, CallArgs& args) {
  no_arguments("urlencode", args);
  if (v.is(Type::kDict) || v.is(Type::kList)) fail("urlencode takes a string here");
  const Text text = in.text_of(v);
  std::string out;
  for (const char c : text.bytes()) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && (is_word(byte) || c == '-' || c == '.' || c == '~' || c == '/')) {
      out += c;
    } else {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "%%%02X", byte);
      out += buffer;
    }
  }
  return in.str(std::move(out), false);
}

Value format(Interpreter& in, const Value& v, CallArgs& args) {
  if (!args.named.empty()) {
    if (!args.positional.empty())
      fail("can't handle positional and keyword arguments at the same time");
    Dict* named = in.heap.make<Dict>(in.meter);
    for (auto& [name, value] : args.named) named->set(in.str(name, true), value);
    return in.str(format_percent(in, in.text_of(v), named));
  }
  return in.str(format_percent(in, in.text_of(v), in.list(args.positional, ListKind::kTuple)));
}

// --- Numbers

std::string without_underscores(std::string_view text) {
  std::string out(text);
  for (size_t i = 1; i + 1 < out.size(); ++i) {
    if (out[i] == '_' && out[i - 1] != '_' && out[i + 1] != '_') out.erase(i--, 1);
  }
  return out;
}

std::optional<double> parse_float(std::string_view text) {
  const std::string plain =
      without_underscores(strip(Text(std::string(text), true), nullptr).view());
  std::string_view digits = plain;
  bool negative = false;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) {
    negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size() || error == std::errc::invalid_argument ||
      digits.find('(') != digits.npos) {
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range) {  // Python reads 1e999 as inf and 1e-999 as 0
    const size_t e = digits.find_first_of("eE");
    value = e != digits.npos && digits.substr(e + 1, 1) == "-" ? 0.0 : HUGE_VAL;
  }
  return negative ? -value : value;
}

std::optional<int64_t> parse_int(std::string_view text, int base) {
  const std::string plain =
      without_underscores(strip(Text(std::string(text), true), nullptr).view());
  std::string digits = plain;
  bool negative = false;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) {
    negative = digits[0] == '-';
    digits.erase(0, 1);
  }
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      digits.erase(0, 2);
    }
  }
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  digits.insert(0, negative ? "-" : "");
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base == 0 ? 10 : base);
  if (error == std::errc::result_out_of_range) fail("int: the number is out of the 64-bit range");
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> truncate_float(double d) {
  if (!(std::fabs(d) < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(d);
}

Value int_filter(Interpreter&, const Value& v, CallArgs& args) {
  const Bound a("int", {"default", "base"}, 0, args);
  const Value otherwise = a.given(0) ? a[0] : Value::integer(0);
  if (v.is_undefined()) fail(v.undefined_reason());
  if (v.is_integral()) return Value::integer(v.as_int());
  std::optional<int64_t> whole;
  if (v.is_number()) whole = truncate_float(v.as_double());
  if (v.is_string()) {
    const int64_t base = a.integer(1, 10);
    if (base != 0 && (base < 2 || base > 36)) fail("int: the base must be 0 or 2 to 36");
    whole = parse_int(v.view(), static_cast<int>(base));
    if (!whole) {
      if (const auto real = parse_float(v.view())) whole = truncate_float(*real);
    }
  }
  return whole ? Value::integer(*whole) : otherwise;
}

Value float_filter(Interpreter&, const Value& v, CallArgs& args) {
  const Bound a("float", {"default"}, 0, args);
  if (v.is_undefined()) fail(v.undefined_reason());
  if (v.is_number()) return Value::real(v.as_double());
  if (v.is_string()) {
    if (const auto value = parse_float(v.view())) return Value::real(*value);
  }
  return a.given(0) ? a[0] : Value::real(0.0);
}

Value abs_filter(Interpreter&, const Value& v, CallArgs& args) {
  no_arguments("abs", args);
  if (v.is_undefined()) fail(v.undefined_reason());
  if (v.is_integral()) {
    if (v.as_int() == INT64_MIN) fail("abs: out of the 64-bit range");
    return Value::integer(std::abs(v.as_int()));
  }
  if (v.is_number()) return Value::real(std::fabs(v.as_double()));
  fail(std::string("bad operand type for abs(): '") + type_name(v) + "'");
}

// To `digits` decimals, halves to even as the exact binary value has it.
double round_to(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -300) return std::copysign(0.0, value);
  if (digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(value / scale) * scale;
  }
  char buffer[700];
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);
  return std::strtod(buffer, nullptr);
}

Value round_filter(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("round", {"precision", "method"}, 0, args);
  const int64_t digits = a.integer(0, 0);
  const std::string method = a.given(1) ? a.text(1).bytes() : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail("method must be common, ceil or floor");
  if (v.is_undefined()) fail(v.undefined_reason());
  if (!v.is_number())
    fail(std::string("type ") + type_name(v) + " doesn't define __round__ method");
  if (method == "common") {
    if (v.is_integral() && digits >= 0) return Value::integer(v.as_int());
    const double rounded = round_to(v.as_double(), digits);
    return v.is_integral() ? Value::integer(static_cast<int64_t>(rounded)) : Value::real(rounded);
  }
  const Value scale = in.binary('p', Value::integer(10), Value::integer(digits));
  const double scaled = in.binary('*', v, scale).as_double();
  const auto whole = truncate_float(method == "ceil" ? std::ceil(scaled) : std::floor(scaled));
  if (!whole) fail("round: out of the 64-bit range");
  return in.binary('/', Value::integer(*whole), scale);
}

// --- JSON, as transformers defines it: json.dumps, not HTML-escaped, with ensure_ascii off

Value tojson(Interpreter& in, const Value& v, CallArgs& args) {
  const Bound a("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, args);
  JsonStyle style;
  style.ensure_ascii = a.flag(0, false);
  style.sort_keys = a.flag(3, false);
  if (a.given(1) && !a[1].is_none()) {
    style.pretty = true;
    style.item_separator = ",";
    style.indent =
        a[1].is_string()
            ? a[1].text().bytes()
            : std::string(static_cast<size_t>(std::clamp<int64_t>(a.integer(1, 0), 0, 1000)), ' ');
    if (style.indent.size() > 1000) fail("tojson: the indent is longer than 1000 bytes");
  }
  if (a.given(2) && !a[2].is_none()) {
    const std::vector<Value> both = iterate(in.heap, a[2]);
    if (both.size() != 2 || !both[0].is_string() || !both[1].is_string())
      fail("tojson: separators must be two strings");
    style.item_separator = both[0].text().bytes();
    style.key_separator = both[1].text().bytes();
  }
  std::string out;
  append_json(out, v, style, in.meter);
  in.meter.step(out.size() / 64);
  return in.str(std::move(out), false);
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable table = {{"upper", convert_text<upper>},
                                    {"lower", convert_text<lower>},
                                    {"title", convert_text<title_words>},
                                    {"capitalize", convert_text<capitalize>},
                                    {"trim", trim},
                                    {"replace", replace_filter},
                                    {"string", string},
                                    {"safe", safe},
                                    {"escape", escape},
                                    {"e", escape},
                                    {"forceescape", escape},
                                    {"indent", indent},
                                    {"center", center},
                                    {"truncate", truncate},
                                    {"wordcount", wordcount},
                                    {"urlencode", urlencode},
                                    {"format", format},
                                    {"int", int_filter},
                                    {"float", float_filter},
                                    {"abs", abs_filter},
                                    {"round", round_filter},
                                    {"tojson", tojson}};
  return table;
}

}  // namespace attune::text::jinja
