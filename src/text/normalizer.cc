#include "text/normalizer.h"

#include <algorithm>

#include "text/unicode.h"

namespace attune::text {
namespace {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out += text.substr(done, at - done);
    out += to;
    done = at + from.size();
  }
  out += text.substr(done);
  return out;
}

std::string replace_matches(std::string_view text, const Regex& regex, std::string_view to) {
  std::string out;
  Regex::Matcher matcher(regex);
  size_t done = 0;
  for (size_t from = 0; from <= text.size();) {
    const auto match = matcher.find(text, from);
    if (!match) break;
    out += text.substr(done, match->begin - done);
    out += to;
    done = from = match->end;
    if (match->end == match->begin) {
      if (from >= text.size()) break;
      from += char_at(text, from).size;
    }
  }
  out += text.substr(done);
  return out;
}

// Whether the step changes the text; if so, `out` is the new one.
bool apply(const Rewrite& step, std::string_view text, bool at_start, std::string& out) {
  if (text.empty()) return false;
  switch (step.kind) {
    case Rewrite::Kind::kNfc:
      if (!may_change_in_nfc(text)) return false;
      out = nfc(text);
      return true;
    case Rewrite::Kind::kPrepend:
      out.assign(step.to).append(text);
      return true;
    case Rewrite::Kind::kReplace:
      if (step.from.empty() || text.find(step.from) == std::string_view::npos) return false;
      out = replace_all(text, step.from, step.to);
      return true;
    case Rewrite::Kind::kReplaceRegex:
      out = replace_matches(text, *step.regex, step.to);
      return true;
    case Rewrite::Kind::kMetaspace: {
      out = replace_all(text, " ", step.to);
      const bool wanted = step.scheme == Rewrite::Scheme::kAlways ||
                          (step.scheme == Rewrite::Scheme::kFirst && at_start);
      if (wanted && !out.starts_with(step.to)) out.insert(0, step.to);
      return true;
    }
    case Rewrite::Kind::kSpacePrefix:
      if (text.front() == ' ') return false;
      out.assign(" ").append(text);
      return true;
  }
  return false;
}

}  // namespace

double growth(const std::vector<Rewrite>& steps) {
  double factor = 1;
  for (const Rewrite& step : steps) {
    const auto to = static_cast<double>(step.to.size());
    switch (step.kind) {
      case Rewrite::Kind::kNfc:
        factor *= 3;  // Unicode annex 15, table 10
        break;
      case Rewrite::Kind::kReplace:
        factor *= std::max(1.0, to / static_cast<double>(std::max<size_t>(step.from.size(), 1)));
        break;
      case Rewrite::Kind::kReplaceRegex:  // may match between any two bytes
      case Rewrite::Kind::kPrepend:       // of a text of one byte
      case Rewrite::Kind::kMetaspace:
        factor *= 1 + to;
        break;
      case Rewrite::Kind::kSpacePrefix:
        factor *= 2;
        break;
    }
  }
  return factor;
}

std::string_view rewrite(const std::vector<Rewrite>& steps, std::string_view text, bool at_start,
                         std::string& storage) {
  std::string next;
  for (const Rewrite& step : steps) {
    if (!apply(step, text, at_start, next)) continue;
    storage.swap(next);
    text = storage;
  }
  return text;
}

}  // namespace attune::text
