// /v1/chat/completions, whole and streamed.
#include "server/testing/server_fixture.h"

namespace attune::server {
namespace {

using namespace testing;  // NOLINT: the fixture and its helpers

constexpr const char* kPath = "/v1/chat/completions";

std::string chat(const std::string& more = "") {
  return R"({"model":"any","messages":[{"role":"user","content":"hi"}])" + more + "}";
}

class ChatTest : public ServerTest {
 protected:
  // The text of one choice of a stream; checks what holds for every event of it.
  std::string joined(const std::vector<Json>& events, int choice = 0) {
    std::string text;
    bool first = true, ended = false;
    for (const Json& event : events) {
      if (at(event, "choices", 0).is_null()) continue;
      if (at(event, "choices", 0, "index") != Json(choice)) continue;
      EXPECT_FALSE(ended);
      const Json delta = at(event, "choices", 0, "delta");
      EXPECT_EQ(at(delta, "role").is_null(), !first);  // the first has the role, no other has
      first = false;
      if (at(delta, "content").is_string()) text += at(delta, "content").as_string();
      ended = !at(event, "choices", 0, "finish_reason").is_null();
    }
    EXPECT_TRUE(ended);
    return text;
  }
};

TEST_F(ChatTest, WholeAnswer) {
  start();
  say("Hello!");
  const Json answer = ask(kPath, chat());
  EXPECT_EQ(at(answer, "object"), Json("chat.completion"));
  EXPECT_EQ(at(answer, "model"), Json("any"));
  EXPECT_TRUE(at(answer, "id").as_string().starts_with("chatcmpl-"));
  EXPECT_GT(at(answer, "created").as_int(), 1700000000);
  const Json choice = at(answer, "choices", 0);
  EXPECT_EQ(at(choice, "message", "role"), Json("assistant"));
  EXPECT_EQ(at(choice, "message", "content"), Json("Hello!"));
  EXPECT_EQ(at(choice, "finish_reason"), Json("stop"));
  EXPECT_EQ(at(choice, "matched_stop"), Json(kEos));
  EXPECT_TRUE(at(choice, "logprobs").is_null());
  // <turn>user\nhi<turn><turn>assistant\n
  EXPECT_EQ(at(answer, "usage", "prompt_tokens"), Json(20));
  EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(7));
  EXPECT_EQ(at(answer, "usage", "total_tokens"), Json(27));
  EXPECT_EQ(at(answer, "usage", "prompt_tokens_details", "cached_tokens"), Json(0));
}

TEST_F(ChatTest, StreamIsTheSameText) {
  start();
  say("Hello, world");
  const auto events = stream(kPath, chat(R"(,"stream":true)"));
  EXPECT_EQ(joined(events), "Hello, world");
  EXPECT_EQ(at(events[0], "object"), Json("chat.completion.chunk"));
  EXPECT_EQ(at(events[0], "choices", 0, "delta", "content"), Json("H"));
}

TEST_F(ChatTest, PromptIsTheRenderedTemplate) {
  start();
  say("x");
  ask(kPath, chat());
  std::vector<TokenId> expected = {kTurn};
  const auto add = [&](const std::string& text) {
    for (const TokenId id : bytes_of(text)) expected.push_back(id);
  };
  add("user\nhi");
  expected.insert(expected.end(), {kTurn, kTurn});
  add("assistant\n");
  EXPECT_EQ(engine.seen().at(0).prompt, expected);
}

TEST_F(ChatTest, BugI05SpecialTokenTextInContentStaysText) {
  start();
  say("x");
  ask(kPath, R"({"messages":[{"role":"user","content":"a<turn>b<eos>"}]})");
  const auto prompt = engine.seen().at(0).prompt;
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), kTurn), 3);
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), kEos), 0);
}

TEST_F(ChatTest, BugI01TemplateAndTokenizerGiveOneBos) {
  tokenizer = byte_tokenizer(true);
  auto compiled = text::ChatTemplate::compile("{{ bos_token }}{{ messages[0].content }}",
                                              {{"bos_token", "<bos>"}});
  ASSERT_TRUE(compiled.ok());
  chat_template.emplace(std::move(*compiled));
  start();
  say("x");
  ask(kPath, chat());
  EXPECT_EQ(engine.seen().at(0).prompt, (std::vector<TokenId>{kBos, 'h', 'i'}));
}

TEST_F(ChatTest, BugI11RefusalOfTheTemplateIs400AndTheServerLives) {
  start();
  say("x");
  const Json error = refused(400, kPath, R"({"messages":[{"role":"user","content":"a"},
      {"role":"system","content":"b"}]})");
  EXPECT_NE(at(error, "message").as_string().find("the system message must come first"),
            std::string::npos);
  EXPECT_EQ(at(error, "param"), Json("messages"));
  ask(kPath, chat());
}

TEST_F(ChatTest, WithoutATemplateItIsRefused) {
  chat_template.reset();
  start();
  const Json error = refused(400, kPath, chat());
  EXPECT_EQ(at(error, "code"), Json("no_chat_template"));
}

TEST_F(ChatTest, ContentPartsAndDeveloperRole) {
  start();
  say("x");
  ask(kPath, R"({"messages":[{"role":"developer","content":[{"type":"text","text":"be"},
      {"type":"text","text":"kind"}]},{"role":"user","content":"hi","name":"me"}]})");
  const std::string prompt = tokenizer->decode(engine.seen().at(0).prompt, false);
  EXPECT_TRUE(prompt.starts_with("<turn>system\nbe kind<turn>")) << prompt;
}

TEST_F(ChatTest, ContinueFinalMessage) {
  start();
  say("x");
  ask(kPath,
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Well, "}],
      "continue_final_message":true})");
  const std::string prompt = tokenizer->decode(engine.seen().at(0).prompt, false);
  EXPECT_TRUE(prompt.ends_with("<turn>assistant\nWell, ") || prompt.ends_with("Well,")) << prompt;
}

TEST_F(ChatTest, BugH01FinishReasonIsNullUntilTheLastEvent) {
  start();
  say("abc", false);
  const auto events = stream(kPath, chat(R"(,"stream":true,"max_tokens":5)"));
  for (size_t i = 0; i < events.size(); ++i) {
    const Json choice = at(events[i], "choices", 0);
    ASSERT_NE(choice.find("finish_reason"), nullptr);
    EXPECT_EQ(at(choice, "finish_reason"), i + 1 < events.size() ? Json() : Json("length"));
  }
  EXPECT_EQ(joined(events), "abcab");
}

TEST_F(ChatTest, BugH04UsageOnlyWhenAskedFor) {
  start();
  say("abc");
  for (const auto& event : stream(kPath, chat(R"(,"stream":true,"n":2)"))) {
    EXPECT_EQ(event.find("usage"), nullptr);
    EXPECT_EQ(at(event, "choices").as_array().size(), 1u);
  }
  const auto events =
      stream(kPath, chat(R"(,"stream":true,"n":2,"stream_options":{"include_usage":true})"));
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    ASSERT_NE(events[i].find("usage"), nullptr);
    EXPECT_TRUE(at(events[i], "usage").is_null());
  }
  EXPECT_EQ(at(events.back(), "choices"), Json(Json::Array{}));
  EXPECT_EQ(at(events.back(), "usage", "prompt_tokens"), Json(20));
  EXPECT_EQ(at(events.back(), "usage", "completion_tokens"), Json(8));
}

TEST_F(ChatTest, BugH02EachChoiceHasItsIndex) {
  start();
  int calls = 0;
  engine.reply = [&calls](const Request&) {
    auto ids = bytes_of("choice " + std::to_string(calls++));
    ids.push_back(kEos);
    return ids;
  };
  const auto events = stream(kPath, chat(R"(,"stream":true,"n":3,"seed":7)"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(joined(events, i), "choice " + std::to_string(i));
  const auto seen = engine.seen();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(seen[i].sampling.seed, 7 + i);
  calls = 0;
  const Json whole = ask(kPath, chat(R"(,"n":3)"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(at(whole, "choices", i, "index"), Json(i));
    EXPECT_EQ(at(whole, "choices", i, "message", "content"), Json("choice " + std::to_string(i)));
  }
}

TEST_F(ChatTest, BugG16NothingOfAStopStringIsSent) {
  start();
  for (const std::string text : {"abcDEFGHIJxyz", "abcDEFDEFGHIJ", "DEFGHIJ", "abcDEFGHI"}) {
    say(text);
    const size_t found = text.find("DEFGHIJ");
    const std::string expected = text.substr(0, found);
    const auto events = stream(kPath, chat(R"(,"stream":true,"stop":["DEFGHIJ"])"));
    EXPECT_EQ(joined(events), expected) << text;
    const Json last = at(events.back(), "choices", 0);
    EXPECT_EQ(at(last, "finish_reason"), Json("stop"));
    EXPECT_EQ(at(last, "matched_stop"), found < text.size() ? Json("DEFGHIJ") : Json(kEos)) << text;
    const Json whole = ask(kPath, chat(R"(,"stop":"DEFGHIJ")"));
    EXPECT_EQ(at(whole, "choices", 0, "message", "content"), Json(expected));
  }
}

TEST_F(ChatTest, StopStringEndsTheEnginesWorkAndTheCount) {
  engine.step_seconds = 0.001;
  start();
  say("one END and on and on ", false);
  const Json answer = ask(kPath, chat(R"(,"stop":["END"],"max_tokens":3000)"));
  EXPECT_EQ(at(answer, "choices", 0, "message", "content"), Json("one "));
  EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(7));
  EXPECT_TRUE(engine.wait_until_idle());
  EXPECT_EQ(engine.aborted(), 1u);
}

TEST_F(ChatTest, StopInsideALargerEventCountsItsTokens) {
  engine.tokens_per_event = 64;
  start();
  say("one END and on and on ", false);
  const Json answer = ask(kPath, chat(R"(,"stop":["END"],"max_tokens":3000,"logprobs":true)"));
  EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(7));
  EXPECT_EQ(at(answer, "choices", 0, "logprobs", "content").as_array().size(), 7u);
}

TEST_F(ChatTest, NoStopTrimKeepsWhatStopped) {
  start();
  say("one END two");
  EXPECT_EQ(at(ask(kPath, chat(R"(,"stop":["END"],"no_stop_trim":true)")), "choices", 0, "message",
               "content"),
            Json("one END"));
  EXPECT_EQ(at(ask(kPath, chat(R"(,"no_stop_trim":true,"skip_special_tokens":false)")), "choices",
               0, "message", "content"),
            Json("one END two<eos>"));
  EXPECT_EQ(
      at(ask(kPath, chat(R"(,"skip_special_tokens":false)")), "choices", 0, "message", "content"),
      Json("one END two"));
}

TEST_F(ChatTest, StopTokenIdsAreCountedButNotShown) {
  start();
  say("abcdef");
  const Json answer = ask(kPath, chat(R"(,"stop_token_ids":[100])"));  // 'd'
  EXPECT_EQ(at(answer, "choices", 0, "message", "content"), Json("abc"));
  EXPECT_EQ(at(answer, "choices", 0, "matched_stop"), Json(100));
  EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(4));
}

TEST_F(ChatTest, BugG18TheFirstTokenLeavesAtOnceAndNoEventIsEmpty) {
  engine.hold(true);
  start();
  say("abcabc");
  Client client(server->port());
  client.send_post(kPath, chat(R"(,"stream":true,"stop":["zzzzzzzz"])"));
  EXPECT_EQ(client.read_head().status, 200);
  ASSERT_TRUE(engine.wait_for_running(1));
  engine.hold(false);
  std::vector<Json> events;
  while (auto event = client.next_event()) {
    if (*event != "[DONE]") events.push_back(parse(*event));
  }
  ASSERT_EQ(events.size(), 7u);  // one per character, then the finish reason
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(at(events[i], "choices", 0, "delta", "content").as_string().size(), 1u);
  }
}

TEST_F(ChatTest, BugG19CharactersAreNeverBroken) {
  start();
  const std::string text = "한국어 中文 👩‍👩‍👧‍👦 é हिन्दी";
  say(text);
  const auto events = stream(kPath, chat(R"(,"stream":true)"));
  EXPECT_EQ(joined(events), text);
  for (const Json& event : events) {
    EXPECT_EQ(event.dump().find("\xEF\xBF\xBD"), std::string::npos);
  }
  say("a\xE4\xB8");  // ends inside a character
  EXPECT_EQ(joined(stream(kPath, chat(R"(,"stream":true)"))), "a\xEF\xBF\xBD");
}

TEST_F(ChatTest, EmptyAnswer) {
  start();
  say("");
  const auto events = stream(kPath, chat(R"(,"stream":true)"));
  EXPECT_EQ(joined(events), "");
  EXPECT_EQ(at(ask(kPath, chat()), "choices", 0, "message", "content"), Json(""));
}

TEST_F(ChatTest, LogprobsInChatForm) {
  start();
  say("é");
  const Json answer = ask(kPath, chat(R"(,"logprobs":true,"top_logprobs":2)"));
  const Json content = at(answer, "choices", 0, "logprobs", "content");
  ASSERT_EQ(content.as_array().size(), 3u);  // two bytes and the end
  EXPECT_EQ(at(content, 0, "bytes"), Json(Json::Array{0xC3}));
  EXPECT_EQ(at(content, 0, "logprob"), Json(-0.75));  // -0.25 * (195 % 8)
  EXPECT_EQ(at(content, 0, "top_logprobs").as_array().size(), 2u);
  EXPECT_EQ(at(content, 2, "token"), Json("<eos>"));
  size_t streamed = 0;
  for (const Json& event :
       stream(kPath, chat(R"(,"stream":true,"logprobs":true,"top_logprobs":2)"))) {
    const Json part = at(event, "choices", 0, "logprobs", "content");
    for (size_t i = 0; part.is_array() && i < part.as_array().size(); ++i) {
      EXPECT_EQ(part.as_array()[i], content.as_array()[streamed++]);
    }
  }
  EXPECT_EQ(streamed, 3u);
}

TEST_F(ChatTest, SamplingReachesTheEngine) {
  start();
  say("x");
  ask(kPath, chat(R"(,"temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.1,
      "repetition_penalty":1.1,"presence_penalty":0.2,"frequency_penalty":-0.3,"seed":-1,
      "logit_bias":{"65":-100,"66":2.5},"min_tokens":1,"max_tokens":9,"ignore_eos":true)"));
  const SamplingParams s = engine.seen().at(0).sampling;
  EXPECT_FLOAT_EQ(s.temperature, 0.5f);
  EXPECT_FLOAT_EQ(s.top_p, 0.9f);
  EXPECT_EQ(s.top_k, 5);
  EXPECT_FLOAT_EQ(s.min_p, 0.1f);
  EXPECT_FLOAT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_FLOAT_EQ(s.presence_penalty, 0.2f);
  EXPECT_FLOAT_EQ(s.frequency_penalty, -0.3f);
  EXPECT_EQ(s.seed, UINT64_MAX);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<TokenId, float>>{{65, -100.f}, {66, 2.5f}}));
  EXPECT_EQ(s.min_new_tokens, 1);
  EXPECT_EQ(s.max_new_tokens, 9);
  EXPECT_TRUE(s.ignore_eos);
}

TEST_F(ChatTest, BugG15TooManyTokensAreCutToTheContext) {
  engine.info.max_model_len = 32;
  start();
  say("abc", false);
  for (const char* ask_for : {"", R"(,"max_tokens":1000000)", R"(,"max_completion_tokens":500)"}) {
    const Json answer = ask(kPath, chat(ask_for));
    EXPECT_EQ(at(answer, "usage", "completion_tokens"), Json(12));
    EXPECT_EQ(at(answer, "choices", 0, "finish_reason"), Json("length"));
  }
}

TEST_F(ChatTest, EngineFailureIs500OrAnErrorInTheStream) {
  engine.fail_at_token = 2;
  start();
  say("abcdef");
  const Json error = refused(500, kPath, chat());
  EXPECT_EQ(at(error, "type"), Json("server_error"));
  const auto events = stream(kPath, chat(R"(,"stream":true)"));
  EXPECT_NE(at(events.back(), "error", "message").as_string().find("told to fail"),
            std::string::npos);
}

TEST_F(ChatTest, FullQueueIs429) {
  engine.refuse_submit = resource_exhausted("the queue is full");
  start();
  const auto reply = post(kPath, chat());
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.count("retry-after"), 1u);
  EXPECT_EQ(at(parse(reply.body), "error", "type"), Json("rate_limit_error"));
}

}  // namespace
}  // namespace attune::server
