#include "text/pre_tokenizer.h"

#include "text/unicode.h"

namespace attune::text {
namespace {

using Pieces = std::vector<std::string_view>;

// Gives `piece` to `emit` in the parts that `next_end(piece, at)` marks.
template <typename NextEnd>
void cut(std::string_view piece, Pieces& out, NextEnd next_end) {
  for (size_t at = 0; at < piece.size();) {
    const size_t end = next_end(piece, at);
    out.push_back(piece.substr(at, end - at));
    at = end;
  }
}

size_t number_end(std::string_view piece, size_t at, bool runs) {
  const Char first = char_at(piece, at);
  const bool number = char_class(first.code) & kNumber;
  size_t end = at + first.size;
  if (number && !runs) return end;
  while (end < piece.size()) {
    const Char c = char_at(piece, end);
    if (((char_class(c.code) & kNumber) != 0) != number) break;
    end += c.size;
  }
  return end;
}

size_t trailing_space(std::string_view piece) {
  size_t begin = piece.size();
  while (begin > 0) {
    const Char c = char_before(piece, begin);
    if (!(char_class(c.code) & kSpace)) break;
    begin -= c.size;
  }
  return begin;
}

size_t marker_end(std::string_view piece, size_t at, bool runs) {
  size_t end = at;
  if (runs) {
    while (piece.substr(end, kMarker.size()) == kMarker) end += kMarker.size();
  } else if (piece.substr(end, kMarker.size()) == kMarker) {
    end += kMarker.size();
  }
  const size_t next = piece.find(kMarker, end);
  return next == std::string_view::npos ? piece.size() : next;
}

struct Part {
  ByteRange range;
  bool match;
};

// The whole piece as matches and the text between them, in order. An empty match is a place to cut.
std::vector<Part> find_parts(Regex::Matcher& matcher, std::string_view piece, bool invert) {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t from = 0; from <= piece.size();) {
    const auto match = matcher.find(piece, from);
    if (!match) break;
    const bool empty = match->begin == match->end;
    from = match->end;
    if (empty) from += from < piece.size() ? char_at(piece, from).size : 1;
    if (empty && match->begin == done && !parts.empty()) continue;  // just behind another match
    if (match->begin > done) parts.push_back({{done, match->begin}, invert});
    parts.push_back({*match, !invert});
    done = match->end;
  }
  if (done < piece.size()) parts.push_back({{done, piece.size()}, invert});
  return parts;
}

void merge_parts(const std::vector<Part>& parts, SplitBehavior behavior, std::string_view piece,
                 Pieces& out) {
  auto push = [&](size_t begin, size_t end) {
    if (end > begin) out.push_back(piece.substr(begin, end - begin));
  };
  size_t open = 0;  // where the piece being gathered begins
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [range, match] = parts[i];
    const bool last = i + 1 == parts.size();
    switch (behavior) {
      case SplitBehavior::kIsolated:
        push(range.begin, range.end);
        break;
      case SplitBehavior::kRemoved:
        if (!match) push(range.begin, range.end);
        break;
      case SplitBehavior::kContiguous:
        if (!last && parts[i + 1].match == match) break;
        push(open, range.end);
        open = range.end;
        break;
      case SplitBehavior::kMergedWithPrevious:  // a match ends its piece
        if (!match && !last && parts[i + 1].match) break;
        push(open, range.end);
        open = range.end;
        break;
      case SplitBehavior::kMergedWithNext:  // a match begins its piece
        if (match && !last && !parts[i + 1].match) break;
        push(open, range.end);
        open = range.end;
        break;
    }
  }
}

}  // namespace

Result<SplitStep> split_by_regex(const std::string& regex, SplitBehavior behavior, bool invert) {
  SplitStep step;
  step.behavior = behavior;
  step.invert = invert;
  // Where a known expression matches everything, matches and what lies between look alike.
  const bool isolated = behavior == SplitBehavior::kIsolated;
  step.words = isolated ? find_word_pattern(regex) : WordPattern::kNone;
  if (step.words != WordPattern::kNone) return step;
  if (isolated && regex == "\\s+$") {
    step.kind = SplitStep::Kind::kTrailingSpace;
  } else if (isolated && regex == "\\p{N}") {
    step.kind = SplitStep::Kind::kNumbers;
  } else if (isolated && regex == "\\p{N}+") {
    step.kind = SplitStep::Kind::kNumberRuns;
  } else {
    step.kind = SplitStep::Kind::kRegex;
    ATTUNE_ASSIGN_OR_RETURN(step.regex, Regex::compile(regex));
  }
  return step;
}

void apply_split(const SplitStep& step, Pieces& pieces) {
  Pieces out;
  out.reserve(pieces.size() * 2);
  switch (step.kind) {
    case SplitStep::Kind::kWords: {
      const WordScanner scanner = word_scanner(step.words);
      for (auto piece : pieces) cut(piece, out, scanner);
      break;
    }
    case SplitStep::Kind::kRegex: {
      Regex::Matcher matcher(*step.regex);
      for (auto piece : pieces) {
        merge_parts(find_parts(matcher, piece, step.invert), step.behavior, piece, out);
      }
      break;
    }
    case SplitStep::Kind::kNumbers:
    case SplitStep::Kind::kNumberRuns: {
      const bool runs = step.kind == SplitStep::Kind::kNumberRuns;
      for (auto piece : pieces) {
        cut(piece, out, [runs](auto p, size_t at) { return number_end(p, at, runs); });
      }
      break;
    }
    case SplitStep::Kind::kTrailingSpace:
      for (auto piece : pieces) {
        const size_t begin = trailing_space(piece);
        if (begin > 0) out.push_back(piece.substr(0, begin));
        if (begin < piece.size()) out.push_back(piece.substr(begin));
      }
      break;
    case SplitStep::Kind::kMarkers:
    case SplitStep::Kind::kMarkerRuns: {
      const bool runs = step.kind == SplitStep::Kind::kMarkerRuns;
      for (auto piece : pieces) {
        cut(piece, out, [runs](auto p, size_t at) { return marker_end(p, at, runs); });
      }
      break;
    }
  }
  pieces.swap(out);
}

}  // namespace attune::text
