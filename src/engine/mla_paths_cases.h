// Prompts with shared prefixes for the tests of an MLA model's paths, and what came of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/testing.h"

namespace attune::engine::testing::mla {

inline constexpr int32_t kNewTokens = 12;
inline constexpr int32_t kTop = 20;  // of a row; what a GPU's sampler gives

// Two documents, each followed by tails of many lengths; page 16, so that prefix hits end within
// chunks, and chunks within pages.
inline std::vector<std::vector<TokenId>> prompts() {
  std::mt19937 random(3);
  const auto ids = [&](int n) {
    std::vector<TokenId> made(n);
    for (TokenId& id : made) id = static_cast<TokenId>(3 + random() % 93);
    return made;
  };
  std::vector<std::vector<TokenId>> all;
  for (int document : {200, 403}) {
    const std::vector<TokenId> base = ids(document);
    all.push_back(base);
    for (int tail : {1, 5, 17, 64, 130}) {
      all.push_back(base);
      const std::vector<TokenId> more = ids(tail);
      all.back().insert(all.back().end(), more.begin(), more.end());
    }
  }
  return all;
}

inline Options options_of(const char* model) {
  Options options;
  options.model = base::test_data(std::string("families/") + model);
  options.device = "cpu";
  options.dtype = "float32";
  options.max_total_tokens = 16384;
  options.chunked_prefill_size = 1024;
  return options;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<LogprobEntry> rows;  // each token's, and the likeliest
};

struct Outcome {
  std::vector<Answer> answers;
  std::map<std::string, uint64_t> routes;  // "prefill/cpu/ragged": batches, also none
  std::set<std::string> fallbacks;         // of these
};

// The documents first, so that the others find them in the cache; then the rest, at once or one
// after another.
inline Outcome run(const Options& options, bool together) {
  Outcome out;
  auto engine = make_engine(options);
  if (!engine) return out;
  std::vector<Started> started;
  for (const std::vector<TokenId>& prompt : prompts()) {
    started.push_back(start(*engine, prompt,
                            {.temperature = 0,
                             .max_new_tokens = kNewTokens,
                             .ignore_eos = true,
                             .top_logprobs = kTop}));
    if (!together || started.size() % 6 == 1) started.back()->wait();
  }
  for (Started& s : started) {
    s->wait();
    EXPECT_EQ(s->error, "");
    out.answers.push_back({s->tokens, s->logprobs});
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.running_requests, 0);
  for (const EngineStats::AttentionRoute& r : stats.attention_routes) {
    const std::string route = r.phase + "/" + r.backend + "/" + r.path;
    out.routes[route] += r.batches;
    if (r.fallback && r.batches > 0) out.fallbacks.insert(route);
  }
  return out;
}

// How far the likeliest tokens of two rows are apart, by rank and by token.
inline float distance(const LogprobEntry& a, const LogprobEntry& b) {
  EXPECT_EQ(a.top.size(), static_cast<size_t>(kTop));
  EXPECT_EQ(b.top.size(), static_cast<size_t>(kTop));
  float worst = 0;
  for (size_t i = 0; i < std::min(a.top.size(), b.top.size()); ++i) {
    worst = std::max(worst, std::abs(a.top[i].logprob - b.top[i].logprob));
    for (const TokenLogprob& other : b.top)
      if (other.token == a.top[i].token)
        worst = std::max(worst, std::abs(a.top[i].logprob - other.logprob));
  }
  return std::isfinite(worst) ? worst : 1e9f;
}

// The same tokens as long as the choice is no toss-up, and up to there the same rows. What the
// furthest were apart.
inline float expect_same_answers(const Outcome& got, const Outcome& want, float near,
                                 float toss_up) {
  float worst = 0;
  EXPECT_EQ(got.answers.size(), want.answers.size());
  for (size_t i = 0; i < std::min(got.answers.size(), want.answers.size()); ++i) {
    const Answer &g = got.answers[i], &w = want.answers[i];
    EXPECT_EQ(g.rows.size(), static_cast<size_t>(kNewTokens)) << "prompt " << i;
    EXPECT_EQ(g.tokens.size(), static_cast<size_t>(kNewTokens)) << "prompt " << i;
    for (size_t t = 0;
         t < std::min({g.rows.size(), w.rows.size(), g.tokens.size(), w.tokens.size()}); ++t) {
      const float d = distance(g.rows[t], w.rows[t]);
      worst = std::max(worst, d);
      EXPECT_LE(d, near) << "prompt " << i << ", token " << t;
      if (g.tokens[t] == w.tokens[t]) continue;
      EXPECT_LT(w.rows[t].top[0].logprob - w.rows[t].top[1].logprob, toss_up)
          << "prompt " << i << ", token " << t;
      break;
    }
  }
  return worst;
}

}  // namespace attune::engine::testing::mla
