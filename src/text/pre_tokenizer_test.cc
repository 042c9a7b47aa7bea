#include "text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "text/unicode.h"

namespace attune::text {
namespace {

using testing::ElementsAre;
using Pieces = std::vector<std::string_view>;

Pieces split(const SplitStep& step, std::string_view text) {
  Pieces pieces = {text};
  apply_split(step, pieces);
  return pieces;
}
Pieces split(const std::string& regex, std::string_view text,
             SplitBehavior behavior = SplitBehavior::kIsolated, bool invert = false) {
  auto step = split_by_regex(regex, behavior, invert);
  EXPECT_TRUE(step.ok()) << step.status().to_string();
  return step.ok() ? split(*step, text) : Pieces{};
}

// Text that stresses the patterns: few kinds of character, so that their runs and borders meet
// often.
std::string random_text(std::mt19937& random) {
  const char* const parts[] = {"a",      "B",      "é",    "你",      "1",      "½",      "٣", " ",
                               "  ",     "\n",     "\r",   "\t",      "\u00A0", "\u3000", "'", "'s",
                               "'S",     "'re",    "'LL",  "'\u017F", "!",      ".",      "$", "+",
                               "\u0301", "\u200D", "\x01", "\u0085",  "😀",      "ᾳ",      "𝟘"};
  std::string text;
  const int count = std::uniform_int_distribution(0, 14)(random);
  for (int i = 0; i < count; ++i) {
    text += parts[std::uniform_int_distribution<size_t>(0, std::size(parts) - 1)(random)];
  }
  return text;
}

class WordPatterns : public testing::TestWithParam<WordPattern> {};

// The scanners are meant to be the regular expressions; PCRE2 says what those match.
TEST_P(WordPatterns, ScannerEqualsItsRegularExpression) {
  const std::string regex(word_pattern_regex(GetParam()));
  ASSERT_EQ(find_word_pattern(regex), GetParam());
  const SplitStep by_hand{.kind = SplitStep::Kind::kWords, .words = GetParam()};
  SplitStep by_regex{.kind = SplitStep::Kind::kRegex};
  auto compiled = Regex::compile(regex);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  by_regex.regex = *compiled;
  std::mt19937 random(11);
  for (int i = 0; i < 10'000; ++i) {
    const std::string text = random_text(random);
    ASSERT_EQ(split(by_hand, text), split(by_regex, text)) << text;
  }
}

TEST_P(WordPatterns, LongRunsTakeLinearTime) {
  const SplitStep step{.kind = SplitStep::Kind::kWords, .words = GetParam()};
  for (const char* part : {" ", "\n", "a", "1", "!", "\u0301", "\x01", " \n", "\t", "'"}) {
    std::string text;
    while (text.size() < 500'000) text += part;
    size_t total = 0;
    for (auto piece : split(step, text + "a")) total += piece.size();
    EXPECT_EQ(total, text.size() + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(, WordPatterns,
                         testing::Values(WordPattern::kGpt2, WordPattern::kLlama3,
                                         WordPattern::kQwen2, WordPattern::kQwen35,
                                         WordPattern::kDeepSeekV3));

// Expected values: tokenizers 0.23.3, pre_tokenizers.Split(...).pre_tokenize_str("a--b-").
TEST(Split, BehavesAsTokenizersDoes) {
  using B = SplitBehavior;
  EXPECT_THAT(split("-", "a--b-", B::kIsolated), ElementsAre("a", "-", "-", "b", "-"));
  EXPECT_THAT(split("-", "a--b-", B::kRemoved), ElementsAre("a", "b"));
  EXPECT_THAT(split("-", "a--b-", B::kMergedWithPrevious), ElementsAre("a-", "-", "b-"));
  EXPECT_THAT(split("-", "a--b-", B::kMergedWithNext), ElementsAre("a", "-", "-b", "-"));
  EXPECT_THAT(split("-", "a--b-", B::kContiguous), ElementsAre("a", "--", "b", "-"));
  EXPECT_THAT(split("[ab]", "a--b-", B::kRemoved, true), ElementsAre("a", "b"));
  EXPECT_THAT(split("x*", "ab", B::kIsolated), ElementsAre("a", "b"));
  EXPECT_THAT(split("-", "", B::kIsolated), ElementsAre());
}

TEST(Split, TrailingSpaceAndNumbersByHand) {
  EXPECT_THAT(split("\\s+$", "a b \t "), ElementsAre("a b", " \t "));
  EXPECT_THAT(split("\\s+$", "  "), ElementsAre("  "));
  EXPECT_THAT(split("\\p{N}", "a12½b"), ElementsAre("a", "1", "2", "½", "b"));
  EXPECT_THAT(split("\\p{N}+", "a12½b"), ElementsAre("a", "12½", "b"));
  std::string spaces(1'000'000, ' ');
  EXPECT_THAT(split("\\s+$", spaces + "x").size(),
              1u);  // the regular expression itself is quadratic here
}

TEST(Split, MarkersBeginPieces) {
  const std::string text = "a\u2581b\u2581\u2581c";
  EXPECT_THAT(split({.kind = SplitStep::Kind::kMarkers}, text),
              ElementsAre("a", "\u2581b", "\u2581", "\u2581c"));
  EXPECT_THAT(split({.kind = SplitStep::Kind::kMarkerRuns}, text),
              ElementsAre("a", "\u2581b", "\u2581\u2581c"));
}

TEST(Regex, MeansWhatOnigurumaMeans) {
  EXPECT_THAT(split("\\s", "a\u180Eb c"), ElementsAre("a\u180Eb", " ", "c"));
  EXPECT_THAT(split("[\\s]", "a\u180Eb\u0085c"), ElementsAre("a\u180Eb", "\u0085", "c"));
  EXPECT_THAT(split("\\w+", "e\u0301\u203F-"), ElementsAre("e\u0301\u203F", "-"))
      << "marks and connectors are word characters";
  EXPECT_THAT(split("\\h+", "xAf09z"), ElementsAre("x", "Af09", "z")) << "hexadecimal digits";
  EXPECT_THAT(split("b$", "ab\nb"), ElementsAre("a", "b", "\n", "b")) << "$ is at every line";
  EXPECT_THAT(split("[[:digit:]]+", "a12"), ElementsAre("a", "12"));
}

TEST(Regex, RefusesWithAReason) {
  EXPECT_EQ(split_by_regex("a(").status().code(), Code::kDataLoss);
  EXPECT_THAT(split_by_regex("a(").status().message(), testing::HasSubstr("offset 2"));
  EXPECT_EQ(split_by_regex("[a&&b]").status().code(), Code::kUnsupported);
  EXPECT_EQ(split_by_regex("[a[b]]").status().code(), Code::kUnsupported);
  EXPECT_EQ(split_by_regex(std::string(100'000, 'a')).status().code(), Code::kDataLoss);
  EXPECT_EQ(split_by_regex("\\C").status().code(), Code::kDataLoss);
}

TEST(Regex, BoundsWhatAMatchMayCost) {
  const std::string text(5'000, 'a');
  EXPECT_THAT(split("(a+)+b", text).size(), 1u);  // exponential
  EXPECT_THAT(split("(?:a|aa|(?:a)*)*b", text).size(), 1u);
  EXPECT_GE(split("(a|b)*c|a", std::string(1 << 20, 'a')).size(), 1u);  // deep
}

TEST(Presets, AreSortedAndCompile) {
  std::string_view last;
  std::string names = pre_tokenizer_preset_names() + ", ";
  for (size_t at = 0, end; (end = names.find(", ", at)) != std::string::npos; at = end + 2) {
    const auto name = std::string_view(names).substr(at, end - at);
    EXPECT_LT(last, name);
    last = name;
    const PreTokenizerPreset* preset = find_pre_tokenizer_preset(name);
    ASSERT_NE(preset, nullptr) << name;
    for (const std::string& regex : preset->regexes)
      EXPECT_TRUE(split_by_regex(regex).ok()) << name;
  }
  EXPECT_EQ(find_pre_tokenizer_preset("default"), nullptr);
}

// Quadratic steps would take minutes, and a match given up would leave one piece.
TEST(Presets, LongRunsTakeLinearTime) {
  for (const char* name : {"deepseek-coder", "deepseek-llm", "deepseek-v3", "gpt-4o", "tekken"}) {
    for (const char* part :
         {"A", "a", "\u4F60", " ", "\n", "1", "!", "\u0301", "Ab", "\u3000", " a", "\r\n "}) {
      std::string text;
      while (text.size() < 200'000) text += part;
      text += "z!";
      Pieces pieces = {text};
      for (const std::string& regex : find_pre_tokenizer_preset(name)->regexes) {
        apply_split(*split_by_regex(regex), pieces);
      }
      size_t total = 0;
      for (auto piece : pieces) total += piece.size();
      EXPECT_EQ(total, text.size());
      EXPECT_EQ(pieces.back(), "!") << name << ": " << part;
    }
  }
}

}  // namespace
}  // namespace attune::text
