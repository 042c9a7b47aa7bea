// What is refused, with which words; the rules of every field.
#include "server/testing/server_fixture.h"

namespace attune::server {
namespace {

using namespace testing;  // NOLINT: the fixture and its helpers

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kText = "/v1/completions";

std::string chat(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + more + "}";
}
std::string text(const std::string& more) {
  return R"({"prompt":"hi",)" + more + "}";
}

class RequestsTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    start();
    say("x");
  }
};

TEST_F(RequestsTest, UnknownFieldsAreNamed) {
  for (const char* name : {"foo", "max_new_tokens", "kv_transfer_params", "Temperature"}) {
    for (const auto& [path, body] :
         {std::pair{kChat, chat("\"" + std::string(name) + "\":1")},
          std::pair{kText, text("\"" + std::string(name) + "\":null")}}) {
      const Json error = refused(400, path, body);
      EXPECT_EQ(at(error, "param"), Json(name));
      EXPECT_EQ(at(error, "code"), Json("unknown_parameter"));
      EXPECT_EQ(at(error, "type"), Json("invalid_request_error"));
      EXPECT_NE(at(error, "message").as_string().find(name), std::string::npos);
    }
  }
}

TEST_F(RequestsTest, FieldsWithoutEffectAreAccepted) {
  const char* fields = R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto",
      "prompt_cache_key":"k","safety_identifier":"s")";
  ask(kChat, chat(fields));
  ask(kText, text(fields));
}

TEST_F(RequestsTest, UnsupportedFieldsAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"response_format", R"({"type":"json_object"})"},
      {"response_format", R"({"type":"json_schema","json_schema":{}})"},
      {"tools", R"([{"type":"function","function":{"name":"f"}}])"},
      {"tool_choice", R"("required")"},
      {"tool_choice", R"({"type":"function","function":{"name":"f"}})"},
      {"parallel_tool_calls", "true"},
      {"functions", R"([{"name":"f"}])"},
      {"function_call", R"({"name":"f"})"},
      {"audio", R"({"voice":"x"})"},
      {"modalities", R"(["text","audio"])"},
      {"prediction", R"({"type":"content","content":""})"},
      {"web_search_options", "{}"},
      {"reasoning_effort", R"("low")"},
      {"regex", R"("a*")"},
  };
  for (const auto& [name, value] : cases) {
    const Json error = refused(400, kChat, chat("\"" + std::string(name) + "\":" + value));
    EXPECT_EQ(at(error, "param"), Json(name)) << value;
    EXPECT_EQ(at(error, "code"), Json("unsupported_parameter"));
  }
  EXPECT_EQ(at(refused(400, kText, text(R"("suffix":"x")")), "param"), Json("suffix"));
  EXPECT_EQ(at(refused(400, kText, text(R"("best_of":3)")), "param"), Json("best_of"));
}

TEST_F(RequestsTest, HarmlessValuesOfUnsupportedFieldsPass) {
  ask(kChat, chat(R"("response_format":{"type":"text"},"tools":[],"tool_choice":"none",
      "modalities":["text"],"functions":null,"audio":null,"reasoning_effort":null)"));
  ask(kChat, chat(R"("tool_choice":"auto")"));
  ask(kText, text(R"("best_of":1,"suffix":null,"logprobs":null,"stop":null)"));
}

TEST_F(RequestsTest, TypesAndRangesAreStrict) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"temperature", {R"("1")", "-0.1", "2.1", "true", "[1]", "1e300"}},
      {"top_p", {"0", "-1", "1.01", R"("0.5")"}},
      {"top_k", {"-2", "1.5", R"("4")", "true"}},
      {"min_p", {"-0.1", "1.1"}},
      {"repetition_penalty", {"0", "2.5"}},
      {"presence_penalty", {"-2.5", "3"}},
      {"frequency_penalty", {"-2.5", "3", "{}"}},
      {"n", {"0", "-1", "129", "1.0", R"("2")"}},
      {"seed", {"1.5", R"("7")", "99999999999999999999"}},
      {"max_tokens", {"-1", "-53", R"("5")", "1.5", "3000000000"}},
      {"min_tokens", {"-1", "true"}},
      {"stream", {"1", R"("true")", "[]"}},
      {"stop", {R"("")", "1", R"(["a",""])", R"(["a",2])", "{}"}},
      {"stop_token_ids", {R"("1")", "[-1]", "[1.5]", R"(["1"])"}},
      {"ignore_eos", {"1"}},
      {"skip_special_tokens", {"0"}},
      {"logit_bias",
       {"[]", R"({"a":1})", R"({"1":101})", R"({"1":"2"})", R"({"-1":1})", R"({"1.5":1})"}},
      {"stream_options", {"1", R"({"foo":1})", R"({"include_usage":1})"}},
      {"model", {"1", "[]"}},
      {"cache_salt", {"1"}},
      {"priority", {R"("1")", "1.5", "2147483648"}},
  };
  for (const auto& [name, values] : cases) {
    for (const char* value : values) {
      const std::string field = "\"" + std::string(name) + "\":" + value;
      EXPECT_EQ(at(refused(400, kChat, chat(field)), "param"), Json(name)) << value;
      EXPECT_EQ(at(refused(400, kText, text(field)), "param"), Json(name)) << value;
    }
  }
}

TEST_F(RequestsTest, PriorityReachesTheEngine) {
  ask(kChat, chat("\"priority\":7"));
  ask(kText, text("\"priority\":-3"));
  ask("/generate", R"({"text":"hi","priority":2147483647})");
  ask("/generate", R"({"text":"hi"})");
  std::vector<int32_t> seen;
  for (const Request& request : engine.seen()) seen.push_back(request.priority);
  EXPECT_EQ(seen, (std::vector<int32_t>{7, -3, 2147483647, 0}));
}

// What every choice copies or every event repeats: long ones would take gigabytes.
TEST_F(RequestsTest, NamesAndStopStringsAreShort) {
  const auto field = [](std::string name, size_t bytes) {
    return "\"" + name + "\":\"" + std::string(bytes, 'z') + "\"";
  };
  for (const char* name : {"model", "cache_salt", "stop"}) {
    ask(kText, text(field(name, 1024)));
    EXPECT_EQ(at(refused(400, kText, text(field(name, 1025))), "param"), Json(name));
  }
  EXPECT_EQ(at(refused(400, "/generate", R"({"text":"hi",)" + field("rid", 1025) + "}"), "param"),
            Json("rid"));
  std::string stops;
  for (int i = 0; i < 5; ++i) stops += (i > 0 ? ",\"" : "\"") + std::string(1000, 'z') + "\"";
  EXPECT_EQ(at(refused(400, kText, text("\"stop\":[" + stops + "]")), "param"), Json("stop"));
  const Json unknown =
      refused(400, kText, text(field("prompt2", 1) + "," + "\"" + std::string(5000, 'k') + "\":1"));
  EXPECT_LT(at(unknown, "message").as_string().size(), 500u);
}

TEST_F(RequestsTest, RulesAcrossFields) {
  EXPECT_EQ(at(refused(400, kChat, chat(R"("top_logprobs":2)")), "param"), Json("top_logprobs"));
  EXPECT_EQ(at(refused(400, kChat, chat(R"("logprobs":2)")), "param"), Json("logprobs"));
  EXPECT_EQ(at(refused(400, kText, text(R"("logprobs":true)")), "param"), Json("logprobs"));
  EXPECT_EQ(at(refused(400, kText, text(R"("logprobs":21)")), "param"), Json("logprobs"));
  EXPECT_EQ(at(refused(400, kChat, chat(R"("min_tokens":5,"max_tokens":4)")), "param"),
            Json("min_tokens"));
  EXPECT_EQ(at(refused(400, kChat, chat(R"("max_tokens":5,"max_completion_tokens":4)")), "param"),
            Json("max_completion_tokens"));
  EXPECT_EQ(at(refused(400, kChat, chat(R"("stream_options":{"include_usage":true})")), "param"),
            Json("stream_options"));
  EXPECT_EQ(at(refused(400, kText, R"({"prompt":["a","b","c","d","e","f","g","h","i","j","k","l",
      "m","n","o","p","q","r","s","t","u","v","w","x","y","z","0","1","2","3","4","5","6"],"n":128})"),
               "param"),
            Json("n"));
}

TEST_F(RequestsTest, MessagesAreChecked) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "messages"},
      {R"("hi")", "messages"},
      {"[1]", "messages[0]"},
      {R"([{"content":"hi"}])", "messages[0].role"},
      {R"([{"role":"king","content":"hi"}])", "messages[0].role"},
      {R"([{"role":1,"content":"hi"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":null}])", "messages[0].content"},
      {R"([{"role":"user","content":7}])", "messages[0].content"},
      {R"([{"role":"user","content":["hi"]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "messages[0].content[0]"},
      {R"([{"role":"user","content":"a"},{"role":"user","content":"b","foo":1}])",
       "messages[1].foo"},
  };
  for (const auto& [messages, param] : cases) {
    const Json error = refused(400, kChat, std::string(R"({"messages":)") + messages + "}");
    EXPECT_EQ(at(error, "param"), Json(param)) << messages;
  }
  EXPECT_EQ(at(refused(400, kChat, "{}"), "param"), Json("messages"));
  EXPECT_EQ(at(refused(400, kChat, R"({"messages":null})"), "param"), Json("messages"));
}

TEST_F(RequestsTest, BodiesThatAreNoJsonObject) {
  for (const char* body : {"", "{", "[]", "null", "\"x\"", "{\"prompt\":\"a\"}x", "{\"a\":NaN}",
                           "{\"prompt\":\"\xff\"}"}) {
    const Json error = refused(400, kText, body);
    EXPECT_EQ(at(error, "code"), Json("invalid_json")) << body;
  }
  std::string deep(100000, '[');
  EXPECT_EQ(at(refused(400, kText, deep), "code"), Json("invalid_json"));
}

TEST_F(RequestsTest, BugG02EmptyPromptsFailOnlyThemselves) {
  for (const char* prompt : {R"("")", R"([""])", "[]", "[[]]", R"(["a",""])", "[[97],[]]"}) {
    refused(400, kText, std::string(R"({"prompt":)") + prompt + "}");
  }
  refused(400, kText, "{}");
  refused(400, "/generate", R"({"text":""})");
  refused(400, "/generate", R"({"input_ids":[]})");
  refused(400, "/generate", R"({"input_ids":[[],[1]]})");
  EXPECT_EQ(engine.running(), 0);
  ask(kText, R"({"prompt":"<turn>"})");  // only a special token is a prompt
}

TEST_F(RequestsTest, BugG12IdsOutsideTheVocabulary) {
  for (const char* ids : {"[261]", "[2147483647]", "[-1]", "[4294967296]", "[[1],[99999]]"}) {
    refused(400, kText, std::string(R"({"prompt":)") + ids + "}");
    refused(400, "/generate", std::string(R"({"input_ids":)") + ids + "}");
  }
}

TEST_F(RequestsTest, BugG14PromptOverTheLimitGivesBothNumbers) {
  const std::string many(5000, 'a');
  std::string ids = "[1";
  for (int i = 0; i < 4999; ++i) ids += ",1";
  ids += "]";
  const std::pair<const char*, std::string> cases[] = {
      {kText, R"({"prompt":")" + many + "\"}"},
      {kText, R"({"prompt":)" + ids + "}"},
      {kChat, R"({"messages":[{"role":"user","content":")" + many + "\"}]}"},
      {"/generate", R"({"text":")" + many + "\"}"},
      {"/generate", R"({"input_ids":)" + ids + "}"}};
  for (const auto& [path, body] : cases) {
    const std::string message = at(refused(400, path, body), "message").as_string();
    EXPECT_NE(message.find("50"), std::string::npos) << message;  // 5000, or 5018 with a template
    EXPECT_NE(message.find("4096"), std::string::npos) << message;
  }
  // Far beyond, not every token is counted any more.
  const std::string huge(1'000'000, 'a');
  for (const auto& [path, body] :
       {std::pair(kText, R"({"prompt":")" + huge + "\"}"),
        std::pair(kChat, R"({"messages":[{"role":"user","content":")" + huge + "\"}]}")}) {
    const std::string message = at(refused(400, path, body), "message").as_string();
    EXPECT_NE(message.find("more than 69632 tokens"), std::string::npos) << message;
    EXPECT_NE(message.find("at most 4096"), std::string::npos) << message;
  }
}

// Above 0, but 0 as a float: as small as can be, not outside the range.
TEST_F(RequestsTest, TinyNumbersStayAboveZero) {
  ask(kText, R"({"prompt":"q","top_p":1e-60,"repetition_penalty":1e-60})");
  EXPECT_GT(engine.seen().back().sampling.top_p, 0.0f);
  EXPECT_GT(engine.seen().back().sampling.repetition_penalty, 0.0f);
}

TEST_F(RequestsTest, BugH12PromptAtTheLimitIsNotBlamedOnMaxTokens) {
  const std::string message =
      at(refused(400, kText, R"({"prompt":")" + std::string(4096, 'a') + "\"}"), "message")
          .as_string();
  EXPECT_NE(message.find("prompt"), std::string::npos);
  EXPECT_EQ(message.find('-'), std::string::npos) << message;
  EXPECT_EQ(message.find("max_tokens"), std::string::npos) << message;
  const Json almost =
      ask(kText, R"({"prompt":")" + std::string(4095, 'a') + R"(","ignore_eos":true})");
  EXPECT_EQ(at(almost, "usage", "completion_tokens"), Json(1));
}

TEST_F(RequestsTest, LongBodiesTakeTheWorkersPathWithTheSameResult) {
  const std::string spaces(70 << 10, ' ');
  const Json answer = ask(kText, spaces + R"({"prompt":"abc"})");
  EXPECT_EQ(at(answer, "choices", 0, "text"), Json("x"));
  EXPECT_EQ(at(refused(400, kText, spaces + R"({"prompt":"abc","foo":1})"), "param"), Json("foo"));
  const auto events = stream(kText, spaces + R"({"prompt":"abc","stream":true})");
  EXPECT_EQ(at(events.at(0), "choices", 0, "text"), Json("x"));
}

}  // namespace
}  // namespace attune::server
