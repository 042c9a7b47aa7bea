// Canonical composition by the algorithm of Unicode Standard Annex 15, with Hangul by rule (Unicode
// 16, section 3.12).
#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "text/unicode.h"

namespace attune::text {
namespace {

struct Run {
  char32_t first;
  uint8_t value;
};
struct Decomposition {
  char32_t whole, first, second;  // second 0: a singleton
};
#include "text/unicode_nfc.inc"

constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

uint8_t combining_class(char32_t code) {
  auto after = std::upper_bound(std::begin(kCombiningRuns), std::end(kCombiningRuns), code,
                                [](char32_t c, const Run& run) { return c < run.first; });
  return std::prev(after)->value;
}

template <size_t N>
const Decomposition* find_whole(const Decomposition (&table)[N], char32_t code) {
  auto it = std::lower_bound(std::begin(table), std::end(table), code,
                             [](const Decomposition& d, char32_t c) { return d.whole < c; });
  return it != std::end(table) && it->whole == code ? it : nullptr;
}

// Decompositions nest at most four deep.
void decompose(char32_t c, std::vector<char32_t>& out) {
  if (c - kSBase < kSCount) {
    const char32_t s = c - kSBase, t = s % kTCount;
    out.push_back(kLBase + s / (kVCount * kTCount));
    out.push_back(kVBase + s % (kVCount * kTCount) / kTCount);
    if (t != 0) out.push_back(kTBase + t);
    return;
  }
  const Decomposition* d = c < 0xC0 ? nullptr : find_whole(kPrimaryComposites, c);
  if (d == nullptr && c >= 0xC0) d = find_whole(kOtherDecompositions, c);
  if (d == nullptr) {
    out.push_back(c);
    return;
  }
  decompose(d->first, out);
  if (d->second != 0) decompose(d->second, out);
}

using PairIndex = std::vector<const Decomposition*>;
PairIndex by_pair() {
  PairIndex index;
  for (const Decomposition& d : kPrimaryComposites) index.push_back(&d);
  std::sort(index.begin(), index.end(), [](auto* a, auto* b) {
    return std::pair(a->first, a->second) < std::pair(b->first, b->second);
  });
  return index;
}

// The primary composite of two characters, or 0.
char32_t compose(char32_t a, char32_t b) {
  if (a - kLBase < kLCount && b - kVBase < kVCount) {
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  }
  if (a - kSBase < kSCount && (a - kSBase) % kTCount == 0 && b - kTBase - 1 < kTCount - 1) {
    return a + (b - kTBase);
  }
  static const PairIndex index = by_pair();
  auto it = std::lower_bound(index.begin(), index.end(), std::pair(a, b), [](auto* d, auto pair) {
    return std::pair(d->first, d->second) < pair;
  });
  return it != index.end() && (*it)->first == a && (*it)->second == b ? (*it)->whole : 0;
}

// Sorts each run of non-starters by combining class, keeping the order of equals.
void reorder(std::vector<char32_t>& codes, std::vector<uint8_t>& classes) {
  std::vector<std::pair<uint8_t, char32_t>> run;
  for (size_t i = 0; i < codes.size();) {
    size_t end = i;
    while (end < codes.size() && classes[end] != 0) ++end;
    if (end - i > 1) {
      run.clear();
      for (size_t k = i; k < end; ++k) run.emplace_back(classes[k], codes[k]);
      std::stable_sort(run.begin(), run.end(), [](auto& a, auto& b) { return a.first < b.first; });
      for (size_t k = i; k < end; ++k) std::tie(classes[k], codes[k]) = run[k - i];
    }
    i = end + 1;
  }
}

}  // namespace

bool may_change_in_nfc(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0xCC) {  // below U+0300 nothing changes
      ++at;
      continue;
    }
    const Char c = char_at(text, at);
    if (char_class(c.code) & kNfcRelevant) return true;
    at += c.size;
  }
  return false;
}

std::string nfc(std::string_view text) {
  std::vector<char32_t> codes;
  codes.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Char c = char_at(text, at);
    decompose(c.code, codes);
    at += c.size;
  }
  std::vector<uint8_t> classes(codes.size());
  std::transform(codes.begin(), codes.end(), classes.begin(),
                 [](char32_t c) { return c < 0x300 ? 0 : combining_class(c); });
  reorder(codes, classes);

  std::string out;
  out.reserve(text.size());
  size_t kept = 0;            // codes[0, kept) are done
  size_t starter = SIZE_MAX;  // index of the last starter kept
  for (size_t i = 0; i < codes.size(); ++i) {
    // Blocked when something after the starter has a class at least as high (0 for another
    // starter).
    const bool adjacent = starter != SIZE_MAX && kept == starter + 1;
    const bool open = starter != SIZE_MAX && (adjacent || classes[kept - 1] < classes[i]);
    const char32_t whole = open && codes[i] >= 0x300 ? compose(codes[starter], codes[i]) : 0;
    if (whole != 0) {
      codes[starter] = whole;
      continue;
    }
    codes[kept] = codes[i];
    classes[kept] = classes[i];
    if (classes[i] == 0) starter = kept;
    ++kept;
  }
  for (size_t i = 0; i < kept; ++i) append_utf8(codes[i], out);
  return out;
}

}  // namespace attune::text
