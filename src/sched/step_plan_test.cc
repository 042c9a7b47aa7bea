#include "sched/step_plan.h"

#include <gtest/gtest.h>

#include <limits>

namespace attune::sched {
namespace {

StepPlan full_plan() {
  StepPlan plan;
  plan.id = std::numeric_limits<uint64_t>::max();
  Admission a;
  a.request = 3;
  a.place = SeqPlace(2);
  a.sampling.temperature = 0.1f;
  a.sampling.top_p = std::numeric_limits<float>::denorm_min();
  a.sampling.repetition_penalty = 1.0f / 3;
  a.sampling.logit_bias = {{5, -1.5f}, {6, std::numeric_limits<float>::max()}};
  a.sampling.seed = 18446744073709551615u;
  a.sampling.ignore_eos = true;
  a.sampling.stop_token_ids = {7, 8};
  a.history = {1, 2, 3};
  a.prompt_tokens = 3;
  plan.admissions = {a, Admission{}};
  plan.loads = {{kv::HostSlot(3), kv::DeviceSlot(7)}};
  StepRow p;
  p.request = 3;
  p.place = SeqPlace(2);
  p.kind = RowKind::kPrefill;
  p.num_tokens = 3;
  p.tokens = {1, 2, 3};
  p.pages = {kv::DeviceSlot(9)};
  p.sample = false;
  p.prompt_logprob_start = 0;
  p.next_token = 4;
  StepRow d;
  d.start = std::numeric_limits<int32_t>::max();
  plan.rows = {p, d};
  plan.num_tokens = 4;
  return plan;
}

TEST(StepPlanJson, GivesThePlanAgain) {
  for (const StepPlan& plan : {full_plan(), StepPlan{}}) {
    const std::string line = plan.to_json();
    EXPECT_EQ(line.find('\n'), std::string::npos);
    auto again = parse_step_plan(line);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(*again, plan);
    EXPECT_EQ(again->to_json(), line);
  }
}

TEST(StepPlanJson, LooksAsItShould) {
  StepPlan plan;
  plan.id = 1;
  plan.num_tokens = 1;
  plan.rows.emplace_back().place = SeqPlace(0);
  EXPECT_EQ(plan.to_json(),
            R"({"id":1,"num_tokens":1,"admissions":[],"loads":[],"rows":[{"request":0,"place":0,)"
            R"("kind":"decode","start":0,"num_tokens":1,"tokens":[],"pages":[],"sample":true,)"
            R"("prompt_logprob_start":-1,"next_token":-1}]})");
}

TEST(StepPlanJson, NamesTheFieldThatIsWrong) {
  const std::string line = full_plan().to_json();
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string broken = line;
    broken.replace(broken.find(from), from.size(), to);
    const auto parsed = parse_step_plan(broken);
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument) << to;
    return parsed.status().message();
  };
  EXPECT_NE(error("\"place\":2", "\"place\":x").find("place: expected a number"),
            std::string::npos);
  EXPECT_NE(error("\"place\":2", "\"place\":3000000000").find("place"), std::string::npos);
  EXPECT_NE(error("\"kind\":\"prefill\"", "\"kind\":\"idle\"").find("kind"), std::string::npos);
  EXPECT_NE(error("\"history\"", "\"histori\"").find("history"), std::string::npos);
  EXPECT_NE(error("\"sample\":false", "\"sample\":0").find("sample"), std::string::npos);
}

TEST(StepPlanJson, EveryTruncationAndEveryBrokenByteIsRefusedOrRead) {
  const std::string line = full_plan().to_json();
  for (size_t n = 0; n < line.size(); ++n) EXPECT_FALSE(parse_step_plan(line.substr(0, n)).ok());
  EXPECT_FALSE(parse_step_plan(line + " ").ok());
  for (size_t i = 0; i < line.size(); ++i) {
    std::string broken = line;
    broken[i] = '\0';
    EXPECT_FALSE(parse_step_plan(broken).ok()) << i;
  }
}

}  // namespace
}  // namespace attune::sched
