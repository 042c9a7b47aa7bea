// /generate, SGLang's native form; /v1/tokenize and /v1/detokenize.
#include "server/testing/server_fixture.h"

namespace attune::server {
namespace {

using namespace testing;  // NOLINT: the fixture and its helpers

constexpr const char* kPath = "/generate";

class GenerateTest : public ServerTest {};

TEST_F(GenerateTest, WholeAnswer) {
  start();
  say("xyz");
  const Json answer = ask(kPath, R"({"text":"abc","rid":"my id"})");
  EXPECT_EQ(at(answer, "text"), Json("xyz"));
  EXPECT_EQ(at(answer, "output_ids"), Json(Json::Array{'x', 'y', 'z', kEos}));
  const Json meta = at(answer, "meta_info");
  EXPECT_EQ(at(meta, "id"), Json("my id"));
  EXPECT_EQ(at(meta, "prompt_tokens"), Json(3));
  EXPECT_EQ(at(meta, "completion_tokens"), Json(4));
  EXPECT_EQ(at(meta, "cached_tokens"), Json(0));
  EXPECT_EQ(at(meta, "finish_reason"), parse(R"({"type":"stop","matched":259})"));
  EXPECT_GT(at(meta, "e2e_latency").as_double(), 0);
}

TEST_F(GenerateTest, IdsParametersAndLength) {
  start();
  say("xy", false);
  const Json answer = ask(kPath, R"({"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":5,
      "temperature":0,"sampling_seed":3,"ignore_eos":true,"min_new_tokens":2}})");
  EXPECT_EQ(at(answer, "text"), Json("xyxyx"));
  EXPECT_EQ(at(answer, "meta_info", "finish_reason"), parse(R"({"type":"length","length":5})"));
  const Request request = engine.seen().at(0);
  EXPECT_EQ(request.prompt, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(request.sampling.seed, 3u);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_TRUE(request.sampling.ignore_eos);
  ask(kPath, R"({"text":"a"})");
  EXPECT_EQ(engine.seen().at(1).sampling.max_new_tokens, 128);
}

TEST_F(GenerateTest, StreamRepeatsTheTextSoFar) {
  start();
  say("abc");
  const auto events = stream(kPath, R"({"text":"q","stream":true})");
  ASSERT_EQ(events.size(), 4u);
  const char* texts[] = {"a", "ab", "abc", "abc"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(at(events[i], "text"), Json(texts[i]));
    EXPECT_EQ(at(events[i], "output_ids").as_array().size(), i + 1);
    EXPECT_EQ(at(events[i], "meta_info", "completion_tokens"), Json(int(i) + 1));
    EXPECT_EQ(at(events[i], "meta_info", "finish_reason").is_null(), i < 3);
  }
}

TEST_F(GenerateTest, BatchesAnswerWithAList) {
  start();
  engine.reply = [](const Request& request) {
    auto ids = request.prompt;
    ids.push_back(kEos);
    return ids;
  };
  const Json answer =
      ask(kPath, R"({"text":["a","bc"],"sampling_params":[{"max_new_tokens":1},{}]})");
  ASSERT_EQ(answer.as_array().size(), 2u);
  EXPECT_EQ(at(answer, 0, "text"), Json("a"));
  EXPECT_EQ(at(answer, 0, "meta_info", "finish_reason", "type"), Json("length"));
  EXPECT_EQ(at(answer, 1, "text"), Json("bc"));
  EXPECT_EQ(at(answer, 1, "meta_info", "finish_reason", "type"), Json("stop"));
  EXPECT_NE(at(answer, 0, "meta_info", "id"), at(answer, 1, "meta_info", "id"));
  EXPECT_EQ(ask(kPath, R"({"text":"a","sampling_params":{"n":3}})").as_array().size(), 3u);
  EXPECT_EQ(ask(kPath, R"({"input_ids":[[1]]})").as_array().size(), 1u);
  int last = -1;
  for (const Json& event : stream(kPath, R"({"text":["a","bc"],"stream":true})")) {
    last = std::max(last, static_cast<int>(at(event, "index").as_int()));
  }
  EXPECT_EQ(last, 1);
}

TEST_F(GenerateTest, Logprobs) {
  start();
  say("xy");
  const Json meta = at(ask(kPath, R"({"text":"abc","return_logprob":true,"logprob_start_len":0,
      "top_logprobs_num":2,"return_text_in_logprobs":true})"),
                       "meta_info");
  EXPECT_EQ(at(meta, "input_token_logprobs", 0), parse(R"([null,97,"a"])"));
  EXPECT_EQ(at(meta, "input_token_logprobs", 1), parse(R"([-0.5,98,"b"])"));  // -0.25 * (98 % 8)
  EXPECT_EQ(at(meta, "input_token_logprobs").as_array().size(), 3u);
  EXPECT_EQ(at(meta, "input_top_logprobs").as_array().size(), 3u);
  EXPECT_EQ(at(meta, "input_top_logprobs", 1).as_array().size(), 2u);
  EXPECT_EQ(at(meta, "output_token_logprobs").as_array().size(), 3u);
  EXPECT_EQ(at(meta, "output_top_logprobs").as_array().size(), 3u);

  const Json later =
      at(ask(kPath, R"({"text":"abc","return_logprob":true,"logprob_start_len":2})"), "meta_info");
  EXPECT_EQ(at(later, "input_token_logprobs"), parse("[[-0.75,99,null]]"));
  EXPECT_TRUE(at(later, "input_top_logprobs").is_null());

  const Json none = at(ask(kPath, R"({"text":"abc","return_logprob":true})"), "meta_info");
  EXPECT_EQ(at(none, "input_token_logprobs"), Json(Json::Array{}));
  refused(400, kPath, R"({"text":"abc","return_logprob":true,"logprob_start_len":3})");
}

TEST_F(GenerateTest, ErrorsNameTheField) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "text"},
      {R"({"text":"a","input_ids":[1]})", "text"},
      {R"({"text":[1,2]})", "text"},
      {R"({"input_ids":"abc"})", "input_ids"},
      {R"({"input_ids":["abc"]})", "input_ids"},
      {R"({"input_ids":[1.5]})", "input_ids"},
      {R"({"text":"a","sampling_params":{"max_tokens":3}})", "sampling_params.max_tokens"},
      {R"({"text":"a","sampling_params":{"temperature":-1}})", "sampling_params.temperature"},
      {R"({"text":"a","sampling_params":[{}]})", "sampling_params"},
      {R"({"text":["a","b"],"sampling_params":[{},{"n":2}]})", "sampling_params"},
      {R"({"text":["a","b"],"sampling_params":[{},{"top_p":0}]})", "sampling_params[1].top_p"},
      {R"({"text":"a","sampling_params":{"json_schema":"{}"}})", "sampling_params.json_schema"},
      {R"({"text":"a","image_data":"x"})", "image_data"},
      {R"({"text":"a","bootstrap_host":"1.2.3.4"})", "bootstrap_host"},
      {R"({"text":"a","rid":["1","2"]})", "rid"},
  };
  for (const auto& [body, param] : cases) {
    EXPECT_EQ(at(refused(400, kPath, body), "param"), Json(param)) << body;
  }
}

TEST_F(GenerateTest, FieldsOfOtherFormsAreToldWhereTheyBelong) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {R"({"text":"a","max_new_tokens":3})",
       "unknown field 'max_new_tokens'; put 'max_new_tokens' under 'sampling_params'"},
      {R"({"text":"a","max_tokens":3})",
       "unknown field 'max_tokens'; put 'max_new_tokens' under 'sampling_params'"},
      {R"({"text":"a","sampling_params":{"max_tokens":3}})",
       "unknown field 'sampling_params.max_tokens'; here it is 'max_new_tokens'"},
      {R"({"text":"a","nonsense":3})", "unknown field 'nonsense'; remove it"},
  };
  for (const auto& [body, message] : cases) {
    EXPECT_EQ(at(refused(400, kPath, body), "message"), Json(message)) << body;
  }
}

TEST_F(GenerateTest, BugG27StopStringsWorkForIdsToo) {
  start();
  say("one END two");
  for (const char* prompt : {R"("text":"q")", R"("input_ids":[113])"}) {
    const Json answer =
        ask(kPath, std::string("{") + prompt + R"(,"sampling_params":{"stop":"END"}})");
    EXPECT_EQ(at(answer, "text"), Json("one "));
    EXPECT_EQ(at(answer, "meta_info", "finish_reason"),
              parse(R"({"type":"stop","matched":"END"})"));
  }
}

TEST_F(GenerateTest, Tokenize) {
  tokenizer = byte_tokenizer(true);
  start();
  EXPECT_EQ(ask("/v1/tokenize", R"({"model":"m","prompt":"the<turn>"})"),
            parse(R"({"tokens":[258,256,101,260],"count":4,"max_model_len":4096})"));
  EXPECT_EQ(at(ask("/v1/tokenize", R"({"prompt":"a","add_special_tokens":false})"), "tokens"),
            Json(Json::Array{97}));
  EXPECT_EQ(ask("/v1/tokenize", R"({"prompt":["a","bc"],"add_special_tokens":false})"),
            parse(R"({"tokens":[[97],[98,99]],"count":[1,2],"max_model_len":4096})"));
  EXPECT_EQ(at(ask("/v1/tokenize", R"({"prompt":"","add_special_tokens":false})"), "count"),
            Json(0));
  EXPECT_EQ(at(refused(400, "/v1/tokenize", R"({"prompt":[1]})"), "param"), Json("prompt"));
  EXPECT_EQ(at(refused(400, "/v1/tokenize", R"({"text":"a"})"), "param"), Json("text"));
  std::string many = R"({"prompt":["a")";
  for (int i = 0; i < 2048; ++i) many += R"(,"a")";
  const auto too_many = at(refused(400, "/v1/tokenize", many + "]}"), "message").as_string();
  EXPECT_NE(too_many.find("at most 2048"), std::string::npos) << too_many;
  EXPECT_EQ(at(refused(400, "/v1/tokenize", R"({})"), "param"), Json("prompt"));
}

TEST_F(GenerateTest, Detokenize) {
  start();
  EXPECT_EQ(ask("/v1/detokenize", R"({"model":"m","tokens":[256,101,260]})"),
            parse(R"({"text":"the"})"));
  EXPECT_EQ(ask("/v1/detokenize", R"({"tokens":[256,260],"skip_special_tokens":false})"),
            parse(R"({"text":"th<turn>"})"));
  EXPECT_EQ(ask("/v1/detokenize", R"({"tokens":[[97],[98]]})"), parse(R"({"text":["a","b"]})"));
  EXPECT_EQ(at(refused(400, "/v1/detokenize", R"({"tokens":[100000]})"), "param"), Json("tokens"));
  EXPECT_EQ(at(refused(400, "/v1/detokenize", R"({"tokens":"abc"})"), "param"), Json("tokens"));
}

}  // namespace
}  // namespace attune::server
