#include "text/jinja/text.h"

#include <gtest/gtest.h>

#include "text/jinja/text_ops.h"

namespace attune::text::jinja {
namespace {

Text mixed() {  // ours "<a>", theirs "<b>", ours "<c>"
  Text out("<a>", true);
  out.append("<b>", false);
  out.append("<c>", true);
  return out;
}

// "T..U..": which bytes are whose.
std::string origins(const Text& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) out += text.trusted_at(i) ? 'T' : 'u';
  std::string runs;
  text.for_each_run(0, text.size(), [&](size_t from, size_t to, bool trusted) {
    runs += std::string(to - from, trusted ? 'T' : 'u');
  });
  EXPECT_EQ(out, runs);
  return out;
}

TEST(Text, OriginSurvivesAppendingAndSlicing) {
  Text text = mixed();
  EXPECT_EQ(origins(text), "TTTuuuTTT");
  EXPECT_EQ(origins(text.slice(2, 7)), "TuuuT");
  EXPECT_EQ(origins(text.slice(3, 6)), "uuu");
  EXPECT_EQ(origins(text.slice(6, 6)), "");
  text.append(text);
  EXPECT_EQ(text.bytes(), "<a><b><c><a><b><c>");
  EXPECT_EQ(origins(text), "TTTuuuTTTTTTuuuTTT");
  Text empty;
  empty.append(text, 3, 6);
  EXPECT_EQ(origins(empty), "uuu");
}

TEST(Text, OriginSurvivesStringOperations) {
  Meter meter(1'000'000, 1 << 20);
  const std::string_view angle = "<>", b = "<b>";
  EXPECT_EQ(origins(strip(mixed(), &angle)), "TTuuuTT");
  EXPECT_EQ(origins(upper(mixed())), "TTTuuuTTT");
  EXPECT_EQ(origins(reversed(mixed())), "TTTuuuTTT");
  EXPECT_EQ(origins(replace(mixed(), "<", Text("[[", false), -1, meter)), "uuTTuuuuuuTT");
  EXPECT_EQ(origins(replace(mixed(), "b", Text("B", true), -1, meter)), "TTTuTuTTT");
  const std::vector<Text> parts = split(mixed(), &b, -1);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(origins(join(Text("--", false), parts, meter)), "TTTuuTTT");
  EXPECT_EQ(origins(pad(Text("x", false), 3, " ", Side::kBoth, meter)), "TuT");
  Text sharp("ß", false);  // one character that becomes two
  sharp.append("é", true);
  EXPECT_EQ(upper(sharp).bytes(), "SSÉ");
  EXPECT_EQ(origins(upper(sharp)), "uuTT");
}

TEST(Text, Utf8) {
  const std::string text = "aé日🙂";
  EXPECT_EQ(count_chars(text), 4u);
  EXPECT_EQ(byte_of_char(text, 2), 3u);
  EXPECT_EQ(byte_of_char(text, 9), text.size());
  EXPECT_EQ(previous_char(text, text.size()), 6u);
  EXPECT_EQ(valid_utf8(text), text);
  EXPECT_EQ(valid_utf8("a\xff\xc3"), "a\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80").substr(0, 3), "\xef\xbf\xbd")
      << "surrogates are no characters";
  EXPECT_EQ(valid_utf8("\xc0\x80").find('\0'), std::string::npos)
      << "overlong forms are no characters";
}

}  // namespace
}  // namespace attune::text::jinja
