#include "formats/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <limits>
#include <string>

#include "formats/test_files.h"

namespace attune::formats {
namespace {

using ::testing::HasSubstr;

Json parsed(std::string_view text) {
  Result<Json> json = parse_json(text);
  EXPECT_TRUE(json.ok()) << text << ": " << json.status().to_string();
  return json.ok() ? *json : Json();
}

std::string refusal(std::string_view text) {
  const Result<Json> json = parse_json(text);
  EXPECT_FALSE(json.ok()) << text;
  EXPECT_EQ(json.status().code(), Code::kInvalidArgument);
  return json.status().message();
}

TEST(Json, ReadsEveryKindOfValue) {
  const Json j = parsed(R"( {"a": [1, -2.5, true, false, null, "x"], "b": {}, "": []} )");
  ASSERT_TRUE(j.is_object());
  const Json::Array& a = j.find("a")->as_array();
  EXPECT_EQ(a[0].as_int(), 1);
  EXPECT_EQ(a[1].as_double(), -2.5);
  EXPECT_TRUE(a[2].as_bool());
  EXPECT_FALSE(a[3].as_bool());
  EXPECT_TRUE(a[4].is_null());
  EXPECT_EQ(a[5].as_string(), "x");
  EXPECT_TRUE(j.find("b")->as_object().empty());
  EXPECT_TRUE(j.find("")->as_array().empty());
  EXPECT_EQ(j.find("c"), nullptr);
  EXPECT_EQ(a[0].find("a"), nullptr);
}

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parsed(R"({"z":1,"a":2,"m":3})").dump(), R"({"z":1,"a":2,"m":3})");
}

TEST(Json, IntegersAndDoublesStayApart) {
  EXPECT_TRUE(parsed("1").is_int());
  EXPECT_FALSE(parsed("1.0").is_int());
  EXPECT_FALSE(parsed("1e0").is_int());
  EXPECT_EQ(parsed("1.0").dump(), "1.0");
  EXPECT_EQ(parsed("9223372036854775807").as_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parsed("-9223372036854775808").as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parsed("9223372036854775808").as_double(), 9223372036854775808.0);
  EXPECT_EQ(parsed("123456789012345678901234567890").as_double(), 1.2345678901234568e29);
}

TEST(Json, NumbersAtTheEdgesOfDouble) {
  EXPECT_EQ(parsed("1.7976931348623157e308").as_double(), std::numeric_limits<double>::max());
  EXPECT_EQ(parsed("5e-324").as_double(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(parsed("1e-999").as_double(), 0.0);
  EXPECT_TRUE(std::signbit(parsed("-1e-99999999999999999999").as_double()));
  EXPECT_EQ(parsed("0." + std::string(400, '0') + "1").as_double(), 0.0);
  EXPECT_EQ(parsed("0e99999999999999999999").as_double(), 0.0);
  EXPECT_THAT(refusal("[1e999]"), HasSubstr("too large for a double at byte 1"));
  EXPECT_THAT(refusal("-1e99999999999999999999"), HasSubstr("too large"));
  EXPECT_THAT(refusal(std::string(400, '9')), HasSubstr("too large"));
}

TEST(Json, Escapes) {
  EXPECT_EQ(parsed(R"("\"\\\/\b\f\n\r\t\u00e9\u65e5\ud83d\ude00")").as_string(),
            "\"\\/\b\f\n\r\té日😀");
  EXPECT_EQ(parsed(R"("\u0000")").as_string(), std::string(1, '\0'));
  for (const char* bad : {R"("\x")", R"("\u12g4")", R"("\u12)", R"("\ud83d")", R"("\ud83dx")",
                          R"("\ud83d\u0041")", R"("\ude00")", R"("\)", R"("\u+123")"})
    refusal(bad);
}

TEST(Json, RefusesBadSyntaxWithTheOffset) {
  EXPECT_THAT(refusal(""), HasSubstr("at byte 0"));
  EXPECT_THAT(refusal("[1,]"), HasSubstr("at byte 3"));
  EXPECT_THAT(refusal("[1 2]"), HasSubstr("at byte 3"));
  EXPECT_THAT(refusal("{\"a\" 1}"), HasSubstr("':' expected at byte 5"));
  EXPECT_THAT(refusal("{a:1}"), HasSubstr("a key in quotes expected at byte 1"));
  EXPECT_THAT(refusal("1 x"), HasSubstr("after the document's end at byte 2"));
  EXPECT_THAT(refusal("\"a\nb\""), HasSubstr("control character in a string at byte 2"));
  for (const char* bad : {"{", "[", "\"", "{\"a\":1,}", "tru", "nul", "+1", "01", "1.", ".5", "1e",
                          "--1", "NaN", "Infinity", "'a'", "\xef\xbb\xbf{}", "[1}", "{]", "-"})
    refusal(bad);
}

TEST(Json, RefusesInvalidUtf8) {
  for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf5\x80\x80\x80", "\xf4\x90\x80\x80", "\xf0\x9f\x98", "\xff"})
    EXPECT_THAT(refusal('"' + std::string(bad) + '"'), HasSubstr("invalid UTF-8 at byte 1"));
  refusal("\xc3\xa9");  // outside a string
}

TEST(Json, RefusesDuplicateKeysByName) {
  EXPECT_THAT(refusal(R"({"a":1,"b":2,"a":3})"), HasSubstr(R"("a" appears twice)"));
  EXPECT_THAT(refusal(R"([{"x":{"k\n":1,"k\u000a":1}}])"), HasSubstr(R"("k\n" appears twice)"));
  parsed(R"({"a":{"a":1},"b":{"a":1}})");
}

TEST(Json, NestingIsLimited) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  const Json deepest = parsed(nested(256));
  EXPECT_EQ(deepest.dump(), nested(256));
  EXPECT_EQ(Json(deepest), deepest);
  EXPECT_THAT(refusal(nested(257)), HasSubstr("nesting deeper than 256 at byte 256"));
  EXPECT_THAT(refusal(std::string(10'000'000, '[')), HasSubstr("nesting deeper"));
  std::string objects;
  for (int i = 0; i < 300; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusal(objects), HasSubstr("nesting deeper"));
}

TEST(Json, WritesValidUtf8Whatever) {
  EXPECT_EQ(Json("a\xff"
                 "b")
                .dump(),
            "\"a\xef\xbf\xbd"
            "b\"");
  EXPECT_EQ(Json("\xf0\x9f\x98").dump(), "\"\xef\xbf\xbd\"");  // one for a cut sequence
  EXPECT_EQ(Json("\xed\xa0\x80").dump(), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
  EXPECT_EQ(Json("\"\\\x01\x1f\n\x7f/é").dump(), "\"\\\"\\\\\\u0001\\u001f\\n\x7f/é\"");
}

TEST(Json, WritesNumbersThatReadBackEqual) {
  for (double d : {0.1, 1e-7, 1e22, 123456789.125, -0.0, 5e-324, 1.7976931348623157e308, 3.0})
    EXPECT_EQ(parsed(Json(d).dump()).as_double(), d) << Json(d).dump();
  EXPECT_FALSE(parsed(Json(1e22).dump()).is_int());
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
}

TEST(Json, Builds) {
  Json j;
  j.set("b", 1);
  j.set("a", Json::Array{true, nullptr}).push("x");
  j.set("b", 2.0);
  EXPECT_EQ(j.dump(), R"({"b":2.0,"a":[true,null,"x"]})");
  EXPECT_EQ(j.dump_pretty(),
            "{\n  \"b\": 2.0,\n  \"a\": [\n    true,\n    null,\n    \"x\"\n  ]\n}");
  EXPECT_EQ(Json(Json::Object{}).dump_pretty(), "{}");
  EXPECT_EQ(parsed(j.dump_pretty()), j);
  EXPECT_STREQ(j.type_name(), "object");
  EXPECT_STREQ(j.find("b")->type_name(), "number");
}

// 150,000 keys: a vocabulary. Quadratic search for duplicates would take minutes.
TEST(Json, LargeObjectsParseInTime) {
  std::string text = "{";
  for (int i = 0; i < 150'000; ++i)
    text += (i ? ",\"token" : "\"token") + std::to_string(i) + "\":" + std::to_string(i);
  text += "}";
  const std::clock_t start = std::clock();
  const Json j = parsed(text);
  EXPECT_LT(double(std::clock() - start) / CLOCKS_PER_SEC, 2.0);
  EXPECT_EQ(j.as_object().size(), 150'000u);
}

TEST(Json, ReadsWhatPythonWrites) {
  const Json j = parsed(read_file(golden("rope.json")));
  EXPECT_GT(j.find("cases")->as_array().size(), 10u);
  EXPECT_EQ(parsed(j.dump()), j);
}

}  // namespace
}  // namespace attune::formats
