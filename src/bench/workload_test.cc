#include "bench/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

namespace attune::bench {
namespace {

using ::testing::HasSubstr;

std::string write_file(const std::string& text) {
  const std::string path = ::testing::TempDir() + "lengths.json";
  std::ofstream(path) << text;
  return path;
}

TEST(Workload, RandomLengthsAndIdsStayInTheirRange) {
  const WorkloadConfig config{.num_prompts = 400,
                              .input_len = 20,
                              .output_len = 10,
                              .range_ratio = 0.5,
                              .token_id_range = 50};
  const auto work = make_workload(config);
  ASSERT_TRUE(work.ok());
  ASSERT_EQ(work->size(), 400u);
  size_t shortest = 99, longest = 0;
  for (const PromptWork& item : *work) {
    shortest = std::min(shortest, item.ids.size());
    longest = std::max(longest, item.ids.size());
    EXPECT_GE(item.output_len, 5);
    EXPECT_LE(item.output_len, 10);
    for (TokenId id : item.ids) ASSERT_TRUE(id >= 0 && id < 50);
  }
  EXPECT_EQ(shortest, 10u);
  EXPECT_EQ(longest, 20u);
}

TEST(Workload, DependsOnTheSeedAlone) {
  WorkloadConfig config{.num_prompts = 3};
  const auto one = make_workload(config), same = make_workload(config);
  config.seed = 2;
  const auto other = make_workload(config);
  EXPECT_EQ(one->at(2).ids, same->at(2).ids);
  EXPECT_NE(one->at(2).ids, other->at(2).ids);
  EXPECT_NE(one->at(0).ids.front() * 10000 + one->at(0).ids.at(1),
            one->at(1).ids.front() * 10000 + one->at(1).ids.at(1));
}

TEST(Workload, GroupsShareTheirBeginning) {
  const WorkloadConfig config{.dataset = "generated-shared-prefix",
                              .gsp_groups = 3,
                              .gsp_prompts_per_group = 4,
                              .gsp_system_len = 32,
                              .gsp_question_len = 8,
                              .gsp_output_len = 5};
  const auto work = make_workload(config);
  ASSERT_TRUE(work.ok());
  std::map<std::vector<TokenId>, int> groups;
  for (const PromptWork& item : *work) {
    ASSERT_EQ(item.ids.size(), 40u);
    EXPECT_EQ(item.output_len, 5);
    ++groups[{item.ids.begin(), item.ids.begin() + 32}];
  }
  ASSERT_EQ(groups.size(), 3u);
  for (const auto& [beginning, count] : groups) EXPECT_EQ(count, 4);
}

TEST(Workload, ChatsTakeTurns) {
  const auto work = make_workload({.dataset = "multi-turn",
                                   .num_users = 3,
                                   .num_turns = 2,
                                   .turn_input_len = 8,
                                   .turn_output_len = 5,
                                   .shared_system_len = 4});
  ASSERT_TRUE(work.ok());
  ASSERT_EQ(work->size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const PromptWork& item = (*work)[i];
    EXPECT_EQ(item.turn, i / 3);
    EXPECT_EQ(item.next, i < 3 ? int(i) + 3 : -1);
    EXPECT_EQ(item.ids.size(), i < 3 ? 12u : 8u);
    EXPECT_EQ(item.output_len, 5);
    EXPECT_EQ(i < 3, std::equal(item.ids.begin(), item.ids.begin() + 4, work->front().ids.begin()));
  }
  EXPECT_FALSE(
      std::equal((*work)[0].ids.begin() + 4, (*work)[0].ids.end(), (*work)[1].ids.begin() + 4));
}

TEST(Workload, TakesTheLengthsOfAFile) {
  WorkloadConfig config{.dataset = "lengths-file",
                        .path = std::string(ATTUNE_SOURCE_DIR) + "/bench/workload-256.json"};
  const auto work = make_workload(config);
  ASSERT_TRUE(work.ok()) << work.status().to_string();
  ASSERT_EQ(work->size(), 256u);
  int64_t input = 0, output = 0;
  for (const PromptWork& item : *work)
    input += static_cast<int64_t>(item.ids.size()), output += item.output_len;
  EXPECT_EQ(input, 142827);
  EXPECT_EQ(output, 133966);
  config.num_prompts = 10;
  EXPECT_EQ(make_workload(config)->size(), 10u);
}

TEST(Workload, TellsWhatIsWrongWithALengthsFile) {
  const auto why = [](const std::string& path) {
    return make_workload({.dataset = "lengths-file", .path = path}).status().message();
  };
  EXPECT_THAT(why(""), HasSubstr("needs --dataset-path"));
  EXPECT_THAT(why("/nowhere/x.json"), HasSubstr("--dataset-path /nowhere/x.json: cannot read"));
  EXPECT_THAT(why("/"), HasSubstr("Is a directory"));
  EXPECT_THAT(why(write_file("{")), HasSubstr("--dataset-path"));
  EXPECT_THAT(why(write_file(R"({"input_lens":[1]})")), HasSubstr("no array 'output_lens'"));
  EXPECT_THAT(why(write_file(R"({"input_lens":[1,0],"output_lens":[1,1]})")),
              HasSubstr("input_lens[1]"));
  EXPECT_THAT(why(write_file(R"({"input_lens":[1],"output_lens":[]})")), HasSubstr("as many"));
}

TEST(Workload, RefusesWhatNoMemoryHolds) {
  constexpr int32_t kMost = INT32_MAX;
  for (const WorkloadConfig& config :
       {WorkloadConfig{.num_prompts = kMost, .input_len = 1},
        WorkloadConfig{.num_prompts = 1, .input_len = kMost},
        WorkloadConfig{.dataset = "generated-shared-prefix", .gsp_groups = kMost},
        WorkloadConfig{.dataset = "multi-turn", .num_users = kMost},
        WorkloadConfig{.dataset = "multi-turn", .shared_system_len = kMost},
        WorkloadConfig{.dataset = "generated-shared-prefix", .gsp_system_len = kMost}}) {
    const auto work = make_workload(config);
    EXPECT_EQ(work.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(work.status().message(), HasSubstr("fewer or shorter"));
  }
}

TEST(Workload, WarmUpPromptsShareNothingWithIt) {
  const WorkloadConfig config{.num_prompts = 4, .input_len = 64, .range_ratio = 1};
  const auto warm = warmup_prompt(config, 64, 0);
  ASSERT_EQ(warm.size(), 64u);
  EXPECT_NE(warm, warmup_prompt(config, 64, 1));
  const auto work = make_workload(config);
  ASSERT_TRUE(work.ok());
  for (const PromptWork& item : *work)
    EXPECT_FALSE(std::equal(warm.begin(), warm.begin() + 4, item.ids.begin()));
}

}  // namespace
}  // namespace attune::bench
