// Completions as the command line uses them: without a server.
#include "server/completion.h"

#include <gtest/gtest.h>

#include <new>

#include "server/testing/fake_engine.h"

namespace attune::server {
namespace {

using testing::FakeEngine;
using testing::kEos;

std::vector<TokenId> ids(const std::string& text, bool end = false) {
  std::vector<TokenId> out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  if (end) out.push_back(kEos);
  return out;
}

class CompletionTest : public ::testing::Test {
 protected:
  CompletionSpec spec(const std::string& prompt = "q") {
    CompletionSpec spec;
    spec.prompts.push_back({ids(prompt)});
    spec.prompts[0].sampling.max_new_tokens = 100;
    return spec;
  }

  // Starts, and collects all deltas of each choice into one.
  Result<std::shared_ptr<Completion>> start(CompletionSpec what) {
    return Completion::start(engine, *tokenizer, std::move(what), queue, [this](ChoiceDelta delta) {
      const auto index = static_cast<size_t>(delta.choice);
      if (choices.size() <= index) choices.resize(index + 1);
      choices[index].append(std::move(delta));
      ++deltas;
    });
  }
  void run(CompletionSpec what) {
    auto completion = start(std::move(what));
    ASSERT_TRUE(completion.ok()) << completion.status().to_string();
    while (!(*completion)->done()) ASSERT_TRUE(queue.wait_and_pump(10));
  }

  FakeEngine engine;
  std::shared_ptr<const text::Tokenizer> tokenizer = testing::byte_tokenizer();
  EventQueue queue;
  std::vector<ChoiceDelta> choices;
  int deltas = 0;
};

TEST_F(CompletionTest, TextTokensAndUsage) {
  engine.reply = [](const Request&) { return ids("hello", true); };
  run(spec("abc"));
  EXPECT_EQ(choices[0].text, "hello");
  EXPECT_EQ(choices[0].tokens, ids("hello", true));
  EXPECT_EQ(choices[0].offsets, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(choices[0].finish, FinishReason::kStop);
  EXPECT_EQ(choices[0].matched_token, kEos);
  EXPECT_EQ(choices[0].usage.prompt_tokens, 3);
  EXPECT_EQ(choices[0].usage.completion_tokens, 6);
}

TEST_F(CompletionTest, LimitsAreCheckedBeforeAnythingRuns) {
  auto what = spec("abcd");
  what.token_limit = 4;
  auto refused = start(what);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("4"), std::string::npos);
  what = spec();
  what.prompts.push_back({});
  EXPECT_NE(start(what).status().message().find("prompt 1 is empty"), std::string::npos);
  EXPECT_TRUE(engine.seen().empty());
}

TEST_F(CompletionTest, OutputIsCutToTheLimit) {
  auto what = spec("abcd");
  what.token_limit = 10;
  what.prompts[0].sampling.max_new_tokens = kRestOfContext;
  what.prompts[0].sampling.min_new_tokens = 50;
  run(what);
  EXPECT_EQ(choices[0].usage.completion_tokens, 6);
  EXPECT_EQ(engine.seen()[0].sampling.min_new_tokens, 6);
  EXPECT_EQ(choices[0].finish, FinishReason::kLength);
}

TEST_F(CompletionTest, OneRefusalAbortsThoseBefore) {
  engine.hold(true);
  int calls = 0;
  engine.reply = [&](const Request&) {
    if (++calls == 2) engine.refuse_submit = resource_exhausted("full");
    return ids("x");
  };
  auto what = spec();
  what.n = 4;
  const auto refused = start(what);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(engine.wait_until_idle());
  EXPECT_EQ(engine.aborted(), 2u);
  queue.pump();
  EXPECT_EQ(deltas, 0);
}

TEST_F(CompletionTest, DestructionAborts) {
  engine.hold(true);
  auto completion = start(spec());
  ASSERT_TRUE(completion.ok());
  completion->reset();
  EXPECT_TRUE(engine.wait_until_idle());
  EXPECT_EQ(engine.aborted(), 1u);
}

TEST_F(CompletionTest, ItMayGoInItsOwnCallback) {
  engine.reply = [](const Request&) { return ids("abc"); };
  std::shared_ptr<Completion> completion;
  int calls = 0;
  auto started = Completion::start(engine, *tokenizer, spec(), queue, [&](const ChoiceDelta&) {
    ++calls;
    completion.reset();
  });
  ASSERT_TRUE(started.ok());
  completion = std::move(*started);
  while (calls == 0) queue.wait_and_pump(10);
  EXPECT_TRUE(engine.wait_until_idle());
  queue.pump();
  EXPECT_EQ(calls, 1);
}

TEST_F(CompletionTest, EventsAfterTheQueueAreDropped) {
  engine.hold(true);
  auto other = std::make_unique<EventQueue>();
  auto completion = Completion::start(engine, *tokenizer, spec(), *other,
                                      [](const ChoiceDelta&) { ADD_FAILURE() << "nobody pumps"; });
  ASSERT_TRUE(completion.ok());
  other.reset();
  engine.hold(false);
  EXPECT_TRUE(engine.wait_until_idle());
}

TEST_F(CompletionTest, ScoringGeneratesNothing) {
  auto what = spec("abc");
  what.prompts[0].sampling.max_new_tokens = 0;
  what.prompts[0].sampling.prompt_logprob_start = 0;
  what.prompts[0].sampling.top_logprobs = 1;
  run(what);
  EXPECT_TRUE(choices[0].text.empty());
  EXPECT_TRUE(choices[0].tokens.empty());
  EXPECT_EQ(choices[0].prompt_logprobs.size(), 2u);
  EXPECT_EQ(choices[0].prompt_logprobs_first, 1);
  EXPECT_EQ(choices[0].finish, FinishReason::kLength);
}

TEST_F(CompletionTest, StopsDoNotDependOnHowTokensArrive) {
  const std::string text = "ab the END, the END of it";
  for (const int32_t per_event : {1, 2, 3, 7, 64}) {
    engine.tokens_per_event = per_event;
    engine.reply = [&](const Request&) { return ids(text, true); };
    auto what = spec();
    what.prompts[0].stop = {"the END", "END,"};
    choices.clear();
    run(what);
    EXPECT_EQ(choices[0].text, "ab ") << per_event;
    EXPECT_EQ(choices[0].matched_stop, "the END");
    EXPECT_EQ(choices[0].usage.completion_tokens, 10);
    EXPECT_EQ(choices[0].tokens.size(), 10u);
    EXPECT_EQ(choices[0].offsets.size(), 10u);
  }
}

TEST_F(CompletionTest, WaitEndsWithoutEvents) {
  EXPECT_FALSE(queue.wait_and_pump(0.01));
}

TEST_F(CompletionTest, WhatAConsumerThrowsEndsItsAnswerOnly) {
  engine.reply = [](const Request&) { return ids("hello"); };
  std::string error;
  int calls = 0;
  auto broken = Completion::start(engine, *tokenizer, spec(), queue, [&](ChoiceDelta delta) {
    if (++calls == 1) throw std::bad_alloc();
    error = delta.error;
    EXPECT_EQ(delta.finish, FinishReason::kError);
  });
  ASSERT_TRUE(broken.ok());
  run(spec("other"));
  EXPECT_EQ(choices[0].usage.completion_tokens, 100);
  while (!(*broken)->done()) ASSERT_TRUE(queue.wait_and_pump(10));
  EXPECT_EQ(error, "out of memory");
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(engine.wait_until_idle());
}

}  // namespace
}  // namespace attune::server
