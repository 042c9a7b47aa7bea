// /v1/completions, whole and streamed.
#include "server/testing/server_fixture.h"

namespace attune::server {
namespace {

using namespace testing;  // NOLINT: the fixture and its helpers

constexpr const char* kPath = "/v1/completions";

class CompletionsTest : public ServerTest {};

TEST_F(CompletionsTest, WholeAnswer) {
  start();
  say("def");
  const Json answer = ask(kPath, R"({"model":"m","prompt":"abc"})");
  EXPECT_EQ(at(answer, "object"), Json("text_completion"));
  EXPECT_TRUE(at(answer, "id").as_string().starts_with("cmpl-"));
  EXPECT_EQ(at(answer, "model"), Json("m"));
  EXPECT_EQ(at(answer, "choices", 0, "text"), Json("def"));
  EXPECT_EQ(at(answer, "choices", 0, "finish_reason"), Json("stop"));
  EXPECT_EQ(at(answer, "usage", "prompt_tokens"), Json(3));
  EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(4));
}

TEST_F(CompletionsTest, ModelNameOfOursWhenThereIsNone) {
  start();
  say("x");
  EXPECT_EQ(at(ask(kPath, R"({"prompt":"abc"})"), "model"), Json("fake-model"));
}

TEST_F(CompletionsTest, SixteenTokensUnlessAskedOtherwise) {
  start();
  say("abc", false);
  const Json answer = ask(kPath, R"({"prompt":"abc"})");
  EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(16));
  EXPECT_EQ(at(answer, "choices", 0, "finish_reason"), Json("length"));
}

TEST_F(CompletionsTest, EveryShapeOfPrompt) {
  start();
  say("x");
  const auto prompts = [&](const std::string& prompt) {
    const size_t before = engine.seen().size();
    ask(kPath, R"({"prompt":)" + prompt + "}");
    std::vector<std::string> texts;
    const auto seen = engine.seen();
    for (size_t i = before; i < seen.size(); ++i) {
      texts.push_back(tokenizer->decode(seen[i].prompt, false));
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(prompts(R"("abc")"), Texts({"abc"}));
  EXPECT_EQ(prompts(R"(["abc","de"])"), Texts({"abc", "de"}));
  EXPECT_EQ(prompts("[97,98]"), Texts({"ab"}));
  EXPECT_EQ(prompts("[[97,98],[99]]"), Texts({"ab", "c"}));
  EXPECT_EQ(prompts(R"([[97,98],"cd"])"), Texts({"ab", "cd"}));
}

TEST_F(CompletionsTest, SpecialTokenTextInARawPromptIsTheToken) {
  start();
  say("x");
  ask(kPath, R"({"prompt":"a<turn>"})");
  EXPECT_EQ(engine.seen().at(0).prompt, (std::vector<TokenId>{'a', kTurn}));
}

TEST_F(CompletionsTest, BosIsAddedOnce) {
  tokenizer = byte_tokenizer(true);
  start();
  say("x");
  ask(kPath, R"({"prompt":["ab","<bos>ab"]})");
  for (const auto& request : engine.seen()) {
    EXPECT_EQ(request.prompt, (std::vector<TokenId>{kBos, 'a', 'b'}));
  }
}

TEST_F(CompletionsTest, ChoicesOfABatchAreNumberedThrough) {
  start();
  engine.reply = [](const Request& request) {
    auto ids = request.prompt;
    ids.push_back(kEos);
    return ids;
  };
  const std::string body = R"({"prompt":["a","bc"],"n":2,"best_of":2)";
  const Json answer = ask(kPath, body + "}");
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(at(answer, "choices", i, "index"), Json(i));
    EXPECT_EQ(at(answer, "choices", i, "text"), Json(i < 2 ? "a" : "bc"));
  }
  EXPECT_EQ(at(answer, "usage", "prompt_tokens"), Json(3));  // each prompt once
  EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(10));
  std::vector<std::string> texts(4);
  for (const Json& event : stream(kPath, body + R"(,"stream":true})")) {
    const auto index = static_cast<size_t>(at(event, "choices", 0, "index").as_int());
    texts[index] += at(event, "choices", 0, "text").as_string();
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"a", "a", "bc", "bc"}));
}

// One choice's lists, put together over all events or taken from the one answer.
struct Scored {
  std::string text;
  Json::Array tokens, logprobs, top, offsets;
};

void add(Scored& scored, const Json& choice) {
  scored.text += at(choice, "text").as_string();
  const Json lists = at(choice, "logprobs");
  if (lists.is_null()) return;
  const auto append = [&](const char* key, Json::Array& to) {
    const Json list = at(lists, key);
    for (const Json& item : list.as_array()) to.push_back(item);
  };
  append("tokens", scored.tokens);
  append("token_logprobs", scored.logprobs);
  append("top_logprobs", scored.top);
  append("text_offset", scored.offsets);
}

TEST_F(CompletionsTest, BugH13EchoLogprobsAndStreamCombine) {
  start();
  say("the end");
  for (const bool echo : {false, true}) {
    for (const bool logprobs : {false, true}) {
      std::string body = R"({"prompt":"étude he","max_tokens":20)";
      if (echo) body += R"(,"echo":true)";
      if (logprobs) body += R"(,"logprobs":2)";
      Scored whole, streamed;
      add(whole, at(ask(kPath, body + "}"), "choices", 0));
      for (const Json& event : stream(kPath, body + R"(,"stream":true})")) {
        add(streamed, at(event, "choices", 0));
      }
      EXPECT_EQ(whole.text, std::string(echo ? "étude he" : "") + "the end");
      EXPECT_EQ(streamed.text, whole.text);
      EXPECT_EQ(streamed.tokens, whole.tokens);
      EXPECT_EQ(streamed.logprobs, whole.logprobs);
      EXPECT_EQ(streamed.top, whole.top);
      EXPECT_EQ(streamed.offsets, whole.offsets);
      // é is two tokens, "he" one: 8 in all. The answer has 7 and the end.
      EXPECT_EQ(whole.tokens.size(), logprobs ? (echo ? 16u : 8u) : 0u);
      // Each token's text stands at its offset.
      for (size_t i = 0; i < whole.tokens.size(); ++i) {
        const std::string token = whole.tokens[i].as_string();
        if (token.starts_with("bytes:") || token == "<eos>") continue;
        const auto ascii_at = static_cast<size_t>(whole.offsets[i].as_int()) + (echo ? 1 : 0);
        EXPECT_EQ(whole.text.substr(ascii_at, token.size()), token) << i;
      }
      if (!whole.logprobs.empty()) {
        EXPECT_EQ(whole.logprobs[0].is_null(), echo);
        EXPECT_EQ(whole.top[0].is_null(), echo);
        EXPECT_FALSE(whole.logprobs[1].is_null());
      }
    }
  }
}

TEST_F(CompletionsTest, EchoOffsetsOfSpecialTokens) {
  tokenizer = byte_tokenizer(true);
  start();
  say("x");
  const Json answer =
      ask(kPath, R"({"prompt":"a<turn>b","echo":true,"logprobs":0,"max_tokens":1})");
  EXPECT_EQ(at(answer, "choices", 0, "text"), Json("a<turn>bx"));
  const Json lists = at(answer, "choices", 0, "logprobs");
  EXPECT_EQ(at(lists, "tokens"), Json(Json::Array{"<bos>", "a", "<turn>", "b", "x"}));
  EXPECT_EQ(at(lists, "text_offset"), Json(Json::Array{0, 0, 1, 7, 8}));
}

TEST_F(CompletionsTest, LogprobNamesOfBrokenCharacters) {
  start();
  say("é");
  const Json answer = ask(kPath, R"({"prompt":"a","logprobs":1})");
  const Json lists = at(answer, "choices", 0, "logprobs");
  EXPECT_EQ(at(lists, "tokens", 0), Json("bytes:\\xc3"));
  EXPECT_EQ(at(lists, "tokens", 1), Json("bytes:\\xa9"));
  EXPECT_EQ(at(lists, "text_offset"), Json(Json::Array{0, 0, 1}));
  EXPECT_FALSE(at(lists, "top_logprobs", 0, "bytes:\\xc3").is_null());
}

TEST_F(CompletionsTest, ZeroTokensScoreThePrompt) {
  start();
  say("x");
  const Json answer = ask(kPath, R"({"prompt":"abc","echo":true,"logprobs":1,"max_tokens":0})");
  EXPECT_EQ(at(answer, "choices", 0, "text"), Json("abc"));
  EXPECT_EQ(at(answer, "choices", 0, "finish_reason"), Json("length"));
  EXPECT_EQ(at(answer, "choices", 0, "logprobs", "tokens").as_array().size(), 3u);
  EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(0));
}

TEST_F(CompletionsTest, StopAcrossTokensWithMergedTokens) {
  start();
  engine.reply = [](const Request&) {
    return std::vector<TokenId>{'a', 256, 'e', 'b'};
  };  // a th e b
  const Json answer = ask(kPath, R"({"prompt":"q","stop":["he"],"logprobs":0})");
  EXPECT_EQ(at(answer, "choices", 0, "text"), Json("at"));
  EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(3));
  EXPECT_EQ(at(answer, "choices", 0, "logprobs", "tokens"), Json(Json::Array{"a", "th", "e"}));
  EXPECT_EQ(at(answer, "choices", 0, "matched_stop"), Json("he"));
}

}  // namespace
}  // namespace attune::server
