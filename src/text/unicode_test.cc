#include "text/unicode.h"

#include <gtest/gtest.h>

namespace attune::text {
namespace {

std::string lossy(std::string_view bytes, size_t step = std::string_view::npos) {
  std::string pending, out;
  for (size_t at = 0; at < bytes.size(); at += std::min(step, bytes.size() - at)) {
    append_lossy(pending, bytes.substr(at, step), out);
  }
  return pending.empty() ? out : out + std::string(kReplacement);
}

// Expected values: bytes(...).decode("utf-8", "replace") of CPython 3.11.
TEST(Lossy, ReplacesMaximalInvalidPartsAsPythonDoes) {
  const std::pair<std::string, std::string> cases[] = {
      {"plain \xC3\xA9 \xE4\xBD\xA0 \xF0\x9F\x98\x80", "plain é 你 😀"},
      {"\x80", "\uFFFD"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},
      {"\xE2\x82", "\uFFFD"},
      {"\xE2\x82 a", "\uFFFD a"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98\x80\xFF", "😀\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xF0\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xC3(\xC3", "\uFFFD(\uFFFD"},
      {"\xE4\xBD\xA0\xE5\xA5", "你\uFFFD"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(lossy(bytes), text);
    EXPECT_EQ(lossy(bytes, 1), text) << "a byte at a time";
    EXPECT_EQ(lossy(bytes, 2), text) << "two bytes at a time";
  }
}

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(code, text);
    ASSERT_TRUE(is_valid_utf8(text)) << uint32_t{code};
    ASSERT_EQ(char_at(text, 0).code, code);
    ASSERT_EQ(char_before("x" + text, text.size() + 1).code, code);
    ASSERT_EQ(count_characters(text), 1u);
  }
}

TEST(CharClass, KnowsEveryPlane) {
  EXPECT_EQ(char_class('a'), kLetter);
  EXPECT_EQ(char_class('7'), kNumber);
  EXPECT_EQ(char_class(0xBD), kNumber);  // one half
  EXPECT_EQ(char_class(0x2167), kNumber);
  EXPECT_EQ(char_class(' '), kSpace);
  EXPECT_EQ(char_class('\n'), kSpace);
  EXPECT_EQ(char_class(0x85), kSpace);
  EXPECT_EQ(char_class(0x3000), kSpace);
  EXPECT_EQ(char_class(0x180E), 0) << "the Mongolian vowel separator is no space any more";
  EXPECT_EQ(char_class(0x200B), 0);
  EXPECT_EQ(char_class('_'), kPunctuation);
  EXPECT_EQ(char_class('$'), kSymbol);
  EXPECT_EQ(char_class(0x301) & ~kNfcRelevant, kMark);
  EXPECT_EQ(char_class(0x1F600), kSymbol);
  EXPECT_EQ(char_class(0x1D7D9), kNumber);
  EXPECT_EQ(char_class(0x20000), kLetter);
  EXPECT_EQ(char_class(0x10FFFF), 0);
}

// Expected values: unicodedata.normalize("NFC", ...) of CPython.
TEST(Nfc, ComposesReordersAndExcludes) {
  const std::pair<std::string, std::string> cases[] = {
      {"cafe\u0301 de\u0301ja\u0300", "café déjà"},
      {"o\u0308\u0323", "ọ\u0308"},
      {"a\u0323\u0307", "ạ\u0307"},
      {"\u1100\u1161\u11A8", "각"},
      {"\uAC00\u11A8", "각"},
      {"\u0958", "\u0915\u093C"},
      {"\u2126\u212B", "\u03A9\u00C5"},
      {"\u0344", "\u0308\u0301"},
      {"\u1E9B\u0323", "\u1E9B\u0323"},
      {"か\u3099", "が"},
      {"a\u0315\u0300\u05AE\u0062", "\u00E0\u05AE\u0315b"},
      {"\u0301e", "\u0301e"},
  };
  for (const auto& [text, composed] : cases) {
    EXPECT_EQ(nfc(text), composed);
    EXPECT_EQ(nfc(composed), composed);
    EXPECT_TRUE(text == composed || may_change_in_nfc(text)) << text;
  }
  EXPECT_FALSE(may_change_in_nfc("déjà vu, 你好, Привет"));
}

TEST(Nfc, ManyMarksAreSortedInTime) {
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 ? "\u0301" : "\u0323";
  EXPECT_EQ(nfc(marks).substr(0, 5), "\u1EA1\u0323");
}

}  // namespace
}  // namespace attune::text
