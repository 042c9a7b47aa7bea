// The real model against tests/golden/smollm2.json: ids and logits that `transformers` computed in
// float32 from the same file (tools and rules: tests/golden/README.md). Teacher-forced: at each
// step the engine gets the reference's ids so far and its argmax is compared.
#pragma once

#include <cstdlib>

#include "engine/testing.h"

namespace attune::engine::testing {

struct Golden {
  std::string name;
  std::vector<TokenId> prompt, greedy, second;
  std::vector<double> margin;
  std::vector<std::pair<TokenId, double>> top8;  // first step: id, logit
};

inline const std::vector<Golden>& goldens() {
  static const std::vector<Golden> all = [] {
    const formats::Json json = read_golden("smollm2.json");
    std::vector<Golden> made;
    for (const formats::Json& p : json.find("prompts")->as_array()) {
      Golden g;
      g.name = p.find("name")->as_string();
      g.prompt = ids_of(*p.find("ids"));
      g.greedy = ids_of(*p.find("greedy"));
      g.second = ids_of(*p.find("second"));
      for (const formats::Json& m : p.find("margin")->as_array()) g.margin.push_back(m.as_double());
      for (const formats::Json& t : p.find("first_step_top8")->as_array())
        g.top8.emplace_back(t.as_array()[0].as_int(), t.as_array()[1].as_double());
      made.push_back(std::move(g));
    }
    EXPECT_EQ(made.size(), 5u);
    return made;
  }();
  return all;
}

inline Options test_options() {
  Options options;
  const char* model = std::getenv("ATTUNE_TEST_MODEL");
  options.model =
      model ? model
            : std::string(ATTUNE_SOURCE_DIR) + "/build/models/smollm2-135m-instruct-q4_1.gguf";
  options.max_total_tokens = 8192;
  return options;
}

// All 32 argmaxes of a prompt in one request: prompt log-probabilities over the forced ids, then
// one token.
inline std::vector<TokenId> forced_argmaxes(Engine& engine, const Golden& g) {
  std::vector<TokenId> ids = g.prompt;
  ids.insert(ids.end(), g.greedy.begin(), g.greedy.end() - 1);
  auto sink = start(engine, ids,
                    {.temperature = 0,
                     .max_new_tokens = 1,
                     .ignore_eos = true,
                     .top_logprobs = 1,
                     .prompt_logprob_start = static_cast<int32_t>(g.prompt.size())});
  sink->wait();
  std::vector<TokenId> argmaxes;
  EXPECT_EQ(sink->prompt_first, static_cast<int32_t>(g.prompt.size()));
  for (const LogprobEntry& e : sink->prompt_logprobs) argmaxes.push_back(e.top.at(0).token);
  for (TokenId t : sink->tokens) argmaxes.push_back(t);
  return argmaxes;
}

inline void expect_golden(Engine& engine, double margin_floor, size_t longest = 10000) {
  for (const Golden& g : goldens()) {
    if (g.prompt.size() > longest) continue;
    SCOPED_TRACE(g.name);
    const std::vector<TokenId> got = forced_argmaxes(engine, g);
    ASSERT_EQ(got.size(), g.greedy.size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (g.margin[i] >= margin_floor) {
        EXPECT_EQ(got[i], g.greedy[i]) << "step " << i << ", margin " << g.margin[i];
      }
    }
  }
}

// Step by step through decode; must agree up to the first step below the floor.
inline void expect_free_run(Engine& engine, double margin_floor) {
  std::vector<Started> sinks;
  for (const Golden& g : goldens())
    sinks.push_back(
        start(engine, g.prompt, {.temperature = 0, .max_new_tokens = 32, .ignore_eos = true}));
  for (size_t k = 0; k < sinks.size(); ++k) {
    const Golden& g = goldens()[k];
    SCOPED_TRACE(g.name);
    sinks[k]->wait();
    ASSERT_EQ(sinks[k]->tokens.size(), 32u);
    for (size_t i = 0; i < 32 && g.margin[i] >= margin_floor; ++i)
      EXPECT_EQ(sinks[k]->tokens[i], g.greedy[i]) << "step " << i;
  }
}

}  // namespace attune::engine::testing
