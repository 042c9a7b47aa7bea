#include "bench/dialect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attune::bench {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

struct Timed {
  double at;
  std::string data;
};

const PromptWork kWork{.ids = {5, 6, 7}, .text = "a b c", .output_len = 4};

Result<CallRecord> read(const AskOptions& options, const std::vector<Timed>& events) {
  AnswerReader reader(options, kWork, 100.0);
  for (const Timed& event : events)
    ATTUNE_RETURN_IF_ERROR(reader.on_event(event.data, 100.0 + event.at));
  return reader.finish();
}

std::string native(int tokens, const std::string& text, const std::string& reason = "null") {
  return R"({"text":")" + text + R"(","output_ids":[1],"meta_info":{"prompt_tokens":30,)" +
         R"("cached_tokens":16,"completion_tokens":)" + std::to_string(tokens) +
         R"(,"finish_reason":)" + reason + "}}";
}

// An event that tells `ids` and that `tokens` came so far.
std::string native_ids(const std::string& ids, int tokens, const std::string& reason = "null") {
  return R"({"text":"a","output_ids":)" + ids + R"(,"meta_info":{"completion_tokens":)" +
         std::to_string(tokens) + R"(,"finish_reason":)" + reason + "}}";
}

std::string completion(const std::string& text, const std::string& reason = "null") {
  return R"({"choices":[{"index":0,"text":")" + text + R"(","finish_reason":)" + reason + "}]}";
}

std::string chat(const std::string& delta, const std::string& reason = "null") {
  return R"({"choices":[{"index":0,"delta":)" + delta + R"(,"finish_reason":)" + reason + "}]}";
}

const char* const kUsage = R"({"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":3,
  "prompt_tokens_details":{"cached_tokens":32}}})";

TEST(Generate, TellsTheAnswersIdsInEitherForm) {
  const std::string end = R"({"type":"length"})";
  const auto whole = read({}, {{1, native_ids("[7]", 1)}, {2, native_ids("[7,8,9]", 3, end)}});
  const auto parts = read({}, {{1, native_ids("[7]", 1)}, {2, native_ids("[8,9]", 3, end)}});
  ASSERT_TRUE(whole.ok() && parts.ok());
  EXPECT_THAT(whole->ids, ElementsAre(7, 8, 9));
  EXPECT_THAT(parts->ids, ElementsAre(7, 8, 9));
}

TEST(BugK05, TtftIsNoInterval) {
  // Canned times in each dialect: n tokens give n - 1 intervals, which sum to last minus first.
  const auto a =
      read({.dialect = Dialect::kGenerate}, {{0.5, native(1, "x")},
                                             {0.75, native(2, "xy")},
                                             {1.25, native(3, "xyz", R"({"type":"length"})")},
                                             {1.3, "[DONE]"}});
  const auto b = read({.dialect = Dialect::kCompletions}, {{0.5, completion("x")},
                                                           {0.75, completion("y")},
                                                           {1.25, completion("z", R"("length")")},
                                                           {1.3, kUsage},
                                                           {1.3, "[DONE]"}});
  const auto c =
      read({.dialect = Dialect::kChat}, {{0.1, chat(R"({"role":"assistant","content":""})")},
                                         {0.5, chat(R"({"reasoning_content":"x"})")},
                                         {0.75, chat(R"({"content":"y"})")},
                                         {1.25, chat(R"({"content":"z"})", R"("stop")")},
                                         {1.3, kUsage},
                                         {1.3, "[DONE]"}});
  for (const auto* record : {&a, &b, &c}) {
    ASSERT_TRUE(record->ok()) << record->status().to_string();
    EXPECT_TRUE((*record)->ok);
    EXPECT_DOUBLE_EQ((*record)->ttft.value(), 0.5);
    EXPECT_THAT((*record)->itl, ElementsAre(0.25, 0.5));
    EXPECT_DOUBLE_EQ((*record)->latency, 1.25);
    EXPECT_EQ((*record)->output_len, 3);
    EXPECT_EQ((*record)->text, "xyz");
  }
  EXPECT_EQ(a->prompt_len, 30);
  EXPECT_EQ(a->cached_len, 16);
  EXPECT_EQ(b->prompt_len, 40);
  EXPECT_EQ(c->cached_len, 32);
}

TEST(AnswerReader, TokensThatComeTogetherShareTheirTime) {
  const auto record = read({}, {{1.0, native(2, "ab")},
                                {1.0, native(2, "ab")},
                                {2.5, native(5, "abcde", R"({"type":"length"})")}});
  ASSERT_TRUE(record.ok());
  EXPECT_DOUBLE_EQ(record->ttft.value(), 1.0);
  EXPECT_THAT(record->itl, Pointwise(DoubleNear(1e-9), {0.0, 0.5, 0.5, 0.5}));
}

TEST(AnswerReader, CountsEventsWhereTheServerTellsNoCount) {
  const auto record =
      read({.dialect = Dialect::kCompletions},
           {{1, completion("a")}, {2, completion("b")}, {3, completion("")}, {4, "[DONE]"}});
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->output_len, 2);
  EXPECT_EQ(record->prompt_len, 3);  // as sent
  EXPECT_DOUBLE_EQ(record->latency, 2.0);
}

TEST(AnswerReader, RefusesWhatIsNoWholeAnswer) {
  const auto why = [](Dialect dialect, const std::vector<Timed>& events) {
    return read({.dialect = dialect}, events).status().message();
  };
  const auto kGenerate = Dialect::kGenerate;
  EXPECT_THAT(why(kGenerate, {{1, native(1, "x")}}), HasSubstr("ended before the answer"));
  EXPECT_THAT(why(kGenerate, {{1, "[DONE]"}}), HasSubstr("no token"));
  EXPECT_THAT(why(kGenerate, {{1, "{oops"}}), HasSubstr("no known form: \"{oops\""));
  EXPECT_THAT(why(kGenerate, {{1, "[1]"}}), HasSubstr("no known form"));
  EXPECT_THAT(why(kGenerate, {{1, R"({"text":"x"})"}}), HasSubstr("no known form"));
  EXPECT_THAT(why(kGenerate, {{1, native(1, "x", R"({"type":"abort"})")}}), HasSubstr("abort"));
  EXPECT_THAT(why(Dialect::kChat, {{1, R"({"error":{"message":"out of pages","code":500}})"}}),
              HasSubstr("the server says: out of pages"));
  EXPECT_THAT(why(Dialect::kChat, {{1, R"({"object":"x"})"}}), HasSubstr("no known form"));
}

TEST(AnswerReader, BodiesHaveNoTokenTimes) {
  const std::vector<std::pair<Dialect, std::string>> bodies = {
      {Dialect::kGenerate, native(3, "xyz", R"({"type":"length"})")},
      {Dialect::kCompletions,
       R"({"choices":[{"text":"xyz"}],"usage":{"prompt_tokens":30,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":16}}})"},
      {Dialect::kChat,
       R"({"choices":[{"message":{"content":"xyz"}}],"usage":{"prompt_tokens":30,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":16}}})"}};
  for (const auto& [dialect, body] : bodies) {
    AnswerReader reader({.dialect = dialect, .stream = false}, kWork, 1.0);
    ASSERT_TRUE(reader.on_body(body, 3.0).ok());
    const auto record = reader.finish();
    ASSERT_TRUE(record.ok()) << record.status().to_string();
    EXPECT_EQ(record->text, "xyz");
    EXPECT_EQ(record->output_len, 3);
    EXPECT_EQ(record->prompt_len, 30);
    EXPECT_EQ(record->cached_len, 16);
    EXPECT_DOUBLE_EQ(record->latency, 2.0);
    EXPECT_FALSE(record->ttft.has_value());
    EXPECT_TRUE(record->itl.empty());
  }
  AnswerReader reader({.dialect = Dialect::kChat, .stream = false}, kWork, 1.0);
  EXPECT_FALSE(reader.on_body("<html>", 2.0).ok());
}

TEST(RequestBody, AsksInEachDialect) {
  EXPECT_EQ(
      request_body({.dialect = Dialect::kGenerate}, kWork),
      R"({"input_ids":[5,6,7],"sampling_params":{"temperature":0.0,"max_new_tokens":4,"ignore_eos":true},"stream":true})");
  EXPECT_EQ(request_body({.dialect = Dialect::kCompletions,
                          .model = "m",
                          .temperature = 0.5,
                          .stream = false,
                          .ignore_eos = false},
                         kWork),
            R"({"model":"m","temperature":0.5,"stream":false,"max_tokens":4,"prompt":[5,6,7]})");
  EXPECT_EQ(
      request_body({.dialect = Dialect::kChat, .model = "m"}, kWork),
      R"({"model":"m","temperature":0.0,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":4,"messages":[{"role":"user","content":"a b c"}]})");
}

TEST(ErrorMessage, ShowsWhatTheServerStates) {
  EXPECT_EQ(error_message(400, R"({"error":{"message":"no such model","type":"x"}})"),
            "HTTP status 400: no such model");
  EXPECT_EQ(error_message(422, R"({"detail":"field required"})"),
            "HTTP status 422: field required");
  EXPECT_EQ(error_message(500, R"({"error":"boom"})"), "HTTP status 500: boom");
  EXPECT_EQ(error_message(502, "<html>Bad Gateway"), "HTTP status 502: <html>Bad Gateway");
  EXPECT_EQ(error_message(503, ""), "HTTP status 503");
}

}  // namespace
}  // namespace attune::bench
