#include "text/jinja/text_ops.h"

#include <algorithm>

namespace attune::text::jinja {

namespace {

bool in_set(char32_t c, const std::string_view* chars) {
  if (chars == nullptr) return is_space(c);
  for (size_t pos = 0; pos < chars->size();) {
    if (next_char(*chars, pos) == c) return true;
  }
  return false;
}

size_t skip_left(std::string_view text, size_t begin, const std::string_view* chars) {
  while (begin < text.size()) {
    size_t next = begin;
    if (!in_set(next_char(text, next), chars)) break;
    begin = next;
  }
  return begin;
}

size_t skip_right(std::string_view text, size_t begin, size_t end, const std::string_view* chars) {
  while (end > begin) {
    const size_t start = previous_char(text, end);
    size_t pos = start;
    if (!in_set(next_char(text, pos), chars)) break;
    end = start;
  }
  return end;
}

// The end of the stretch of non-spaces from `begin` on.
size_t word_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if (is_space(next_char(text, next))) break;
    begin = next;
  }
  return begin;
}

// Builds a text character by character: convert(c, out) appends what c becomes.
template <typename Convert>
Text map_chars(const Text& text, Convert convert) {
  Text out;
  std::string piece;
  text.for_each_run(0, text.size(), [&](size_t begin, size_t end, bool trusted) {
    piece.clear();
    for (size_t pos = begin; pos < end;) convert(next_char(text.view(), pos), piece);
    out.append(piece, trusted);
  });
  return out;
}

}  // namespace

Text strip(const Text& text, const std::string_view* chars, Side side) {
  const size_t begin = side == Side::kRight ? 0 : skip_left(text.view(), 0, chars);
  const size_t end =
      side == Side::kLeft ? text.size() : skip_right(text.view(), begin, text.size(), chars);
  return text.slice(begin, end);
}

Text replace(const Text& text, std::string_view from, const Text& to, int64_t count, Meter& meter) {
  Text out;
  size_t at = 0;
  const auto put = [&] {
    if (out.size() > meter.max_memory()) fail_limit("a replaced text is too large");
    meter.step(1 + to.size() / 64);
    out.append(to);
  };
  meter.step(text.size() / 64);
  if (from.empty()) {
    for (; count != 0; --count) {
      put();
      if (at >= text.size()) break;
      size_t next = at;
      next_char(text.view(), next);
      out.append(text, at, next);
      at = next;
    }
  } else {
    for (; count != 0; --count) {
      const size_t found = text.view().find(from, at);
      if (found == std::string_view::npos) break;
      out.append(text, at, found);
      put();
      at = found + from.size();
    }
  }
  out.append(text, std::min(at, text.size()), text.size());
  return out;
}

std::vector<Text> split(const Text& text, const std::string_view* separator, int64_t max) {
  std::vector<Text> out;
  const std::string_view view = text.view();
  size_t at = separator == nullptr ? skip_left(view, 0, nullptr) : 0;
  for (; max != 0; --max) {
    if (separator == nullptr) {
      if (at >= view.size()) return out;
      const size_t end = word_end(view, at);
      out.push_back(text.slice(at, end));
      at = skip_left(view, end, nullptr);
    } else {
      const size_t found = view.find(*separator, at);
      if (found == std::string_view::npos) break;
      out.push_back(text.slice(at, found));
      at = found + separator->size();
    }
  }
  if (separator != nullptr || at < view.size()) out.push_back(text.slice(at, view.size()));
  return out;
}

std::vector<Text> rsplit(const Text& text, const std::string_view* separator, int64_t max) {
  std::vector<Text> out;
  const std::string_view view = text.view();
  size_t end = separator == nullptr ? skip_right(view, 0, view.size(), nullptr) : view.size();
  bool ended = false;
  for (; max != 0 && !ended; --max) {
    if (separator == nullptr) {
      if (end == 0) break;
      size_t begin = end;
      while (begin > 0) {
        const size_t start = previous_char(view, begin);
        size_t pos = start;
        if (is_space(next_char(view, pos))) break;
        begin = start;
      }
      out.push_back(text.slice(begin, end));
      end = skip_right(view, 0, begin, nullptr);
    } else {
      const size_t found =
          end >= separator->size() ? view.rfind(*separator, end - separator->size()) : view.npos;
      if (found == std::string_view::npos) break;
      out.push_back(text.slice(found + separator->size(), end));
      end = found;
    }
  }
  if (separator != nullptr || end > 0) out.push_back(text.slice(0, end));
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> out;
  const std::string_view view = text.view();
  for (size_t begin = 0; begin < view.size();) {
    size_t end = begin, next = begin;
    while (next < view.size()) {
      const char32_t c = next_char(view, next);
      if (is_line_break(c)) {
        if (c == '\r' && next < view.size() && view[next] == '\n') ++next;
        break;
      }
      end = next;
    }
    out.push_back(text.slice(begin, keep_ends ? next : end));
    begin = next;
  }
  return out;
}

Text join(const Text& separator, const std::vector<Text>& parts, Meter& meter) {
  Text out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(parts[i]);
    if (out.size() > meter.max_memory()) fail_limit("a joined text is too large");
  }
  meter.step(parts.size() + out.size() / 64);
  return out;
}

Text escape_html(const Text& text) {
  return map_chars(text, [](char32_t c, std::string& out) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        append_char(out, c);
    }
  });
}

Text upper(const Text& text) {
  return map_chars(text, [](char32_t c, std::string& out) { out += to_upper(c); });
}

Text lower(const Text& text) {
  return map_chars(text, [](char32_t c, std::string& out) { out += to_lower(c); });
}

Text swap_case(const Text& text) {
  return map_chars(
      text, [](char32_t c, std::string& out) { out += is_upper(c) ? to_lower(c) : to_upper(c); });
}

Text capitalize(const Text& text) {
  return map_chars(text, [first = true](char32_t c, std::string& out) mutable {
    out += std::exchange(first, false) ? to_upper(c) : to_lower(c);
  });
}

Text title(const Text& text) {
  return map_chars(text, [in_word = false](char32_t c, std::string& out) mutable {
    out += in_word ? to_lower(c) : to_upper(c);
    in_word = is_cased(c);
  });
}

Text title_words(const Text& text) {
  return map_chars(text, [in_word = false](char32_t c, std::string& out) mutable {
    const bool border = c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
    out += in_word ? to_lower(c) : to_upper(c);
    in_word = !border;
  });
}

Text reversed(const Text& text) {
  Text out;
  for (size_t end = text.size(); end > 0;) {
    const size_t begin = previous_char(text.view(), end);
    out.append(text, begin, end);
    end = begin;
  }
  return out;
}

namespace {

std::string filling(int64_t width, std::string_view fill, Meter& meter) {
  if (width <= 0) return {};
  if (static_cast<size_t>(width) > meter.max_memory() / fill.size())
    fail_limit("a padded text is too large");
  meter.step(static_cast<size_t>(width) / 16);
  std::string out;
  for (int64_t i = 0; i < width; ++i) out += fill;
  return out;
}

}  // namespace

Text pad(const Text& text, int64_t width, std::string_view fill, Side text_side, Meter& meter) {
  const auto size = static_cast<int64_t>(count_chars(text.view()));
  if (width <= size) return text;
  const int64_t missing = width - size;
  // Python's str.center puts an odd blank left when the width is odd too.
  const int64_t left = text_side == Side::kLeft    ? 0
                       : text_side == Side::kRight ? missing
                                                   : missing / 2 + (missing & width & 1);
  Text out(filling(left, fill, meter), true);
  out.append(text);
  out.append(filling(missing - left, fill, meter), true);
  return out;
}

Text zero_fill(const Text& text, int64_t width, Meter& meter) {
  const auto size = static_cast<int64_t>(count_chars(text.view()));
  const size_t sign = !text.empty() && (text.view()[0] == '-' || text.view()[0] == '+');
  Text out = text.slice(0, sign);
  out.append(filling(width - size, "0", meter), true);
  out.append(text, sign, text.size());
  return out;
}

bool all_chars(std::string_view text, bool (*predicate)(char32_t)) {
  for (size_t pos = 0; pos < text.size();) {
    if (!predicate(next_char(text, pos))) return false;
  }
  return !text.empty();
}

bool is_upper_text(std::string_view text) {
  bool any = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_char(text, pos);
    if (is_lower(c)) return false;
    any = any || is_upper(c);
  }
  return any;
}

bool is_lower_text(std::string_view text) {
  bool any = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_char(text, pos);
    if (is_upper(c)) return false;
    any = any || is_lower(c);
  }
  return any;
}

}  // namespace attune::text::jinja
