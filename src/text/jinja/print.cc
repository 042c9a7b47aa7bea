// How values print: str(), repr() and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja/value.h"

namespace attune::text::jinja {

namespace {

constexpr int kMaxDataDepth = 400;

void check_print(const std::string& out, Meter& meter, int depth) {
  meter.step();
  if (depth > kMaxDataDepth) fail_limit("values are nested more than 400 deep");
  if (out.size() > meter.max_memory()) fail_limit("a printed value is too large");
}

}  // namespace

// Shortest digits that read back the same, laid out as CPython's repr: an exponent below 1e-4 and
// from 1e16 on.
std::string float_repr(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific).ptr;
  const std::string_view all(buffer, static_cast<size_t>(end - buffer));
  const size_t e = all.find('e');
  int exponent = 0;
  std::from_chars(all.data() + e + (all[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(all);
  char plain[400];
  const auto stop = std::to_chars(plain, plain + sizeof plain, v, std::chars_format::fixed).ptr;
  std::string out(plain, stop);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

namespace {

// Code points that repr() shows as themselves; a coarse reading of Unicode's "printable".
bool printable(char32_t c) {
  if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) return false;
  if (is_space(c) && c != ' ') return false;
  return !(c >= 0x200B && c <= 0x200F) && !(c >= 0x202A && c <= 0x202E) &&
         !(c >= 0x2060 && c <= 0x206F) && c != 0xFEFF && !(c >= 0xE000 && c <= 0xF8FF) &&
         !(c >= 0xFFF0 && c <= 0xFFFB) && (c & 0xFFFE) != 0xFFFE && c < 0xE0000;
}

void append_hex(std::string& out, const char* format, unsigned value) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, format, value);
  out += buffer;
}

}  // namespace

void append_quoted(std::string& out, std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  out += quote;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_char(text, pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      append_char(out, c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (printable(c)) {
      append_char(out, c);
    } else {
      append_hex(out, c <= 0xFF ? "\\x%02x" : c <= 0xFFFF ? "\\u%04x" : "\\U%08x", c);
    }
  }
  out += quote;
}

namespace {

void append_repr_items(std::string& out, const std::vector<Value>& items, Meter& meter, int depth) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(out, items[i], meter, depth + 1);
  }
}

void append_repr_list(std::string& out, const List& list, Meter& meter, int depth) {
  switch (list.kind) {
    case ListKind::kTuple:
      out += '(';
      append_repr_items(out, list.items, meter, depth);
      out += list.size() == 1 ? ",)" : ")";
      break;
    case ListKind::kRange:
      out += "range(";
      out += list.items.empty() ? "0" : to_text(list.items.front(), meter).bytes();
      out += ", " + std::to_string(list.items.empty() ? 0 : list.items.back().as_int() + 1) + ")";
      break;
    case ListKind::kIterator:
      out += "<generator object>";
      break;
    case ListKind::kKeys:
    case ListKind::kValues:
    case ListKind::kItems:
      out += list.kind == ListKind::kKeys     ? "dict_keys("
             : list.kind == ListKind::kValues ? "dict_values("
                                              : "dict_items(";
      [[fallthrough]];
    case ListKind::kList:
      out += '[';
      append_repr_items(out, list.items, meter, depth);
      out += list.kind == ListKind::kList ? "]" : "])";
  }
}

}  // namespace

void append_repr(std::string& out, const Value& v, Meter& meter, int depth) {
  check_print(out, meter, depth);
  switch (v.type()) {
    case Type::kMissing:
    case Type::kUndefined:
      out += "Undefined";
      break;
    case Type::kNone:
      out += "None";
      break;
    case Type::kBool:
      out += v.as_bool() ? "True" : "False";
      break;
    case Type::kInt:
      out += std::to_string(v.as_int());
      break;
    case Type::kFloat:
      out += float_repr(v.as_double());
      break;
    case Type::kString:
      append_quoted(out, v.view());
      break;
    case Type::kList:
      append_repr_list(out, *v.list(), meter, depth);
      break;
    case Type::kDict: {
      out += '{';
      bool first = true;
      for (const auto& [key, value] : v.dict()->entries()) {
        if (!first) out += ", ";
        first = false;
        append_repr(out, key, meter, depth + 1);
        out += ": ";
        append_repr(out, value, meter, depth + 1);
      }
      out += '}';
      break;
    }
    case Type::kObject:
      if (auto* ns = dynamic_cast<Namespace*>(v.object())) {
        out += "<Namespace ";
        append_repr(out, ns->attributes, meter, depth + 1);
        out += '>';
      } else {
        out += std::string("<") + v.object()->type_name() + ">";
      }
  }
}

Text to_text(const Value& v, Meter& meter) {
  if (v.is_string()) return v.text();
  if (v.is_undefined() || v.missing()) return Text();
  std::string out;
  append_repr(out, v, meter);
  return Text(std::move(out), v.is_number() || v.is_none());
}

// --- JSON

namespace {

void append_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
  out += '"';
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_char(text, pos);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c > 0x7E && c <= 0xFFFF)) {
          append_hex(out, "\\u%04x", c);
        } else if (ensure_ascii && c > 0xFFFF) {
          append_hex(out, "\\u%04x", 0xD800 + ((c - 0x10000) >> 10));
          append_hex(out, "\\u%04x", 0xDC00 + ((c - 0x10000) & 0x3FF));
        } else {
          append_char(out, c);
        }
    }
  }
  out += '"';
}

std::string json_number(const Value& v) {
  if (v.is(Type::kInt)) return std::to_string(v.as_int());
  const double d = v.as_double();
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
  return float_repr(d);
}

std::string json_key(const Value& key) {
  switch (key.type()) {
    case Type::kString:
      return std::string(key.view());
    case Type::kNone:
      return "null";
    case Type::kBool:
      return key.as_bool() ? "true" : "false";
    case Type::kInt:
    case Type::kFloat:
      return json_number(key);
    default:
      fail(std::string("keys must be str, int, float, bool or None, not ") + type_name(key));
  }
}

void append_break(std::string& out, const JsonStyle& style, int depth) {
  if (!style.pretty) return;
  out += '\n';
  for (int i = 0; i < depth; ++i) out += style.indent;
}

// json.dumps takes the blank off the end of a default item separator when it indents; a caller's
// own separators stay as they are.
void append_json_list(std::string& out, const List& list, const JsonStyle& style, Meter& meter,
                      int depth) {
  if (list.items.empty()) {
    out += "[]";
    return;
  }
  out += '[';
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += style.item_separator;
    append_break(out, style, depth + 1);
    append_json(out, list.items[i], style, meter, depth + 1);
  }
  append_break(out, style, depth);
  out += ']';
}

void append_json_dict(std::string& out, const Dict& dict, const JsonStyle& style, Meter& meter,
                      int depth) {
  if (dict.size() == 0) {
    out += "{}";
    return;
  }
  std::vector<const Dict::Entry*> order;
  for (const auto& entry : dict.entries()) order.push_back(&entry);
  if (style.sort_keys) {
    std::stable_sort(order.begin(), order.end(), [&meter](const auto* a, const auto* b) {
      return less(a->first, b->first, meter);
    });
  }
  out += '{';
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0) out += style.item_separator;
    append_break(out, style, depth + 1);
    append_json_string(out, json_key(order[i]->first), style.ensure_ascii);
    out += style.key_separator;
    append_json(out, order[i]->second, style, meter, depth + 1);
  }
  append_break(out, style, depth);
  out += '}';
}

}  // namespace

void append_json(std::string& out, const Value& v, const JsonStyle& style, Meter& meter,
                 int depth) {
  check_print(out, meter, depth);
  switch (v.type()) {
    case Type::kNone:
      out += "null";
      return;
    case Type::kBool:
      out += v.as_bool() ? "true" : "false";
      return;
    case Type::kInt:
    case Type::kFloat:
      out += json_number(v);
      return;
    case Type::kString:
      append_json_string(out, v.view(), style.ensure_ascii);
      return;
    case Type::kDict:
      append_json_dict(out, *v.dict(), style, meter, depth);
      return;
    case Type::kList:
      if (v.list()->kind <= ListKind::kTuple)
        return append_json_list(out, *v.list(), style, meter, depth);
      [[fallthrough]];
    default:
      fail(std::string("Object of type ") + type_name(v) + " is not JSON serializable");
  }
}

}  // namespace attune::text::jinja
