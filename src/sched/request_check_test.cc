#include "sched/request_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace attune::sched {
namespace {

SchedulerConfig config() {
  SchedulerConfig c;
  c.vocab_size = 100;
  c.max_model_len = 50;
  return c;
}

Request good() {
  Request r;
  r.prompt = {1, 2, 3};
  r.sampling.max_new_tokens = 5;
  return r;
}

TEST(RequestCheck, EveryRangeIsCheckedByName) {
  const float nan = std::nanf(""), inf = INFINITY;
  struct Bad {
    const char* name;
    std::function<void(Request&)> spoil;
  };
  const std::vector<Bad> bad = {
      {"prompt is empty", [](Request& r) { r.prompt.clear(); }},
      {"prompt[1]", [](Request& r) { r.prompt[1] = -1; }},
      {"prompt[2]", [](Request& r) { r.prompt[2] = 100; }},
      {"temperature", [](Request& r) { r.sampling.temperature = -0.1f; }},
      {"temperature", [=](Request& r) { r.sampling.temperature = nan; }},
      {"temperature", [=](Request& r) { r.sampling.temperature = inf; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 0; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 1.01f; }},
      {"top_p", [=](Request& r) { r.sampling.top_p = nan; }},
      {"top_k", [](Request& r) { r.sampling.top_k = 0; }},
      {"top_k", [](Request& r) { r.sampling.top_k = -2; }},
      {"min_p", [](Request& r) { r.sampling.min_p = -0.1f; }},
      {"min_p", [](Request& r) { r.sampling.min_p = 1.1f; }},
      {"min_p", [=](Request& r) { r.sampling.min_p = nan; }},
      {"repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 0; }},
      {"repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 2.1f; }},
      {"repetition_penalty", [=](Request& r) { r.sampling.repetition_penalty = nan; }},
      {"presence_penalty", [](Request& r) { r.sampling.presence_penalty = -2.1f; }},
      {"presence_penalty", [=](Request& r) { r.sampling.presence_penalty = nan; }},
      {"frequency_penalty", [](Request& r) { r.sampling.frequency_penalty = 2.1f; }},
      {"frequency_penalty", [=](Request& r) { r.sampling.frequency_penalty = nan; }},
      {"logit_bias",
       [](Request& r) {
         r.sampling.logit_bias = {{100, 1.0f}};
       }},
      {"logit_bias of token 3",
       [=](Request& r) {
         r.sampling.logit_bias = {{3, inf}};
       }},
      {"max_new_tokens", [](Request& r) { r.sampling.max_new_tokens = -1; }},
      {"min_new_tokens", [](Request& r) { r.sampling.min_new_tokens = 6; }},
      {"min_new_tokens", [](Request& r) { r.sampling.min_new_tokens = -1; }},
      {"stop_token_ids", [](Request& r) { r.sampling.stop_token_ids = {100}; }},
      {"top_logprobs", [](Request& r) { r.sampling.top_logprobs = -2; }},
      {"top_logprobs", [](Request& r) { r.sampling.top_logprobs = 101; }},
      {"prompt_logprob_start", [](Request& r) { r.sampling.prompt_logprob_start = -2; }},
      {"prompt_logprob_start", [](Request& r) { r.sampling.prompt_logprob_start = 4; }},
  };
  for (const Bad& b : bad) {
    Request r = good();
    b.spoil(r);
    const Status status = check_request(config(), 1000, r);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << b.name;
    EXPECT_TRUE(status.message().starts_with(b.name)) << b.name << " / " << status.message();
    EXPECT_NE(status.message().find("expected"), std::string::npos) << status.message();
  }
}

TEST(RequestCheck, EdgesOfEveryRangeAreAccepted) {
  for (const bool upper : {false, true}) {
    Request r = good();
    SamplingParams& p = r.sampling;
    p.temperature = upper ? 100.0f : 0.0f;
    p.top_p = upper ? 1.0f : 1e-6f;
    p.top_k = upper ? 1000000 : 1;
    p.min_p = upper ? 1.0f : 0.0f;
    p.repetition_penalty = upper ? 2.0f : 1e-3f;
    p.presence_penalty = p.frequency_penalty = upper ? 2.0f : -2.0f;
    p.logit_bias = {{upper ? 99 : 0, upper ? 1e30f : -1e30f}};
    p.max_new_tokens = upper ? 47 : 0;
    p.min_new_tokens = p.max_new_tokens;
    p.stop_token_ids = {0, 99};
    p.top_logprobs = upper ? 100 : -1;
    p.prompt_logprob_start = upper ? 3 : -1;
    const Status status = check_request(config(), 1000, r);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
}

TEST(BugG02, EmptyPromptIsRefusedByName) {
  Request r = good();
  r.prompt.clear();
  EXPECT_EQ(check_request(config(), 1000, r).code(), Code::kInvalidArgument);
}

TEST(BugG14, TooLongPromptNamesBothNumbers) {
  Request r = good();
  r.prompt.assign(500, 1);
  const Status model = check_request(config(), 1000, r);
  EXPECT_EQ(model.code(), Code::kInvalidArgument);
  EXPECT_NE(model.message().find("500"), std::string::npos) << model.message();
  EXPECT_NE(model.message().find("50 tokens"), std::string::npos) << model.message();
  r.prompt.assign(40, 1);
  const Status pool = check_request(config(), 32, r);
  EXPECT_NE(pool.message().find("KV pool of 32"), std::string::npos) << pool.message();
}

TEST(BugG15, OverAskingIsClampedOrRefusedAsConfigured) {
  Request r = good();
  r.prompt.assign(48, 1);
  r.sampling.max_new_tokens = 3;
  SchedulerConfig c = config();
  EXPECT_TRUE(check_request(c, 1000, r).ok());
  c.clamp_over_length = false;
  const Status refused = check_request(c, 1000, r);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("max_new_tokens of 3"), std::string::npos);
  r.sampling.max_new_tokens = 2;
  EXPECT_TRUE(check_request(c, 1000, r).ok());
  r.prompt.assign(50, 1);  // room for a prefill, but for no token
  EXPECT_FALSE(check_request(config(), 1000, r).ok());
  r.sampling.max_new_tokens = 0;
  EXPECT_TRUE(check_request(config(), 1000, r).ok());
}

}  // namespace
}  // namespace attune::sched
