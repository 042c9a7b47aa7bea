#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/ops.h"
#include "ops/test_stream.h"

namespace attune::ops {
namespace {

using test::random_floats;
using test::TestStream;

const OpTable& table() {
  return cpu_ops(device::CpuIsa::kAvx2);
}

struct Routing {
  int32_t experts, top_k, groups = 1, top_groups = 1;
  bool sigmoid = false, bias = false, group_top2 = false, normalize = false;
  float scale = 1;
};

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(TestStream& stream, const Routing& r, const std::vector<float>& logits,
             const std::vector<float>& bias) {
  const auto tokens = static_cast<int32_t>(logits.size()) / r.experts;
  Routed out{std::vector<int32_t>(tokens * r.top_k), std::vector<float>(tokens * r.top_k)};
  stream.run(table().moe_route, {.logits = logits.data(),
                                 .tokens = tokens,
                                 .experts = r.experts,
                                 .top_k = r.top_k,
                                 .sigmoid = r.sigmoid,
                                 .bias = r.bias ? bias.data() : nullptr,
                                 .groups = r.groups,
                                 .top_groups = r.top_groups,
                                 .group_top2 = r.group_top2,
                                 .normalize = r.normalize,
                                 .scale = r.scale,
                                 .ids = out.ids.data(),
                                 .weights = out.weights.data()});
  return out;
}

// Indices by falling value, the lower first of equals.
std::vector<int32_t> ranked(const std::vector<double>& v) {
  std::vector<int32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return v[a] > v[b]; });
  return order;
}

// One token, by whole sorts in double.
void expect_token(const Routing& r, const float* logits, const std::vector<float>& bias,
                  const int32_t* ids, const float* weights) {
  std::vector<double> scores(r.experts), choice(r.experts);
  double sum = 0;
  for (int32_t e = 0; e < r.experts; ++e)
    sum += scores[e] = r.sigmoid ? 1 / (1 + std::exp(-double(logits[e]))) : std::exp(logits[e]);
  for (int32_t e = 0; e < r.experts; ++e) {
    if (!r.sigmoid) scores[e] /= sum;
    choice[e] = scores[e] + (r.bias ? bias[e] : 0);
  }
  const int32_t each = r.experts / r.groups;
  std::vector<double> group_scores;
  for (int32_t g = 0; g < r.groups; ++g) {
    std::vector<double> of(choice.begin() + g * each, choice.begin() + (g + 1) * each);
    std::sort(of.rbegin(), of.rend());
    group_scores.push_back(r.group_top2 ? of[0] + of[1] : of[0]);
  }
  const std::vector<int32_t> groups = ranked(group_scores);
  for (int32_t i = r.top_groups; i < r.groups; ++i)
    std::fill_n(choice.begin() + groups[i] * each, each, -1e30);
  const std::vector<int32_t> order = ranked(choice);
  double total = 0;
  for (int32_t j = 0; j < r.top_k; ++j) total += scores[order[j]];
  for (int32_t j = 0; j < r.top_k; ++j) {
    EXPECT_EQ(ids[j], order[j]) << "choice " << j;
    const double want = scores[order[j]] / (r.normalize ? total : 1) * r.scale;
    EXPECT_NEAR(weights[j], want, 1e-6 * std::max(1.0, want));
  }
}

TEST(MoeRoute, EveryMethodIsThatOfASort) {
  TestStream stream(2);
  const Routing kRoutings[] = {
      {.experts = 64, .top_k = 6},
      {.experts = 160, .top_k = 6, .groups = 8, .top_groups = 3, .scale = 16},
      {.experts = 256,
       .top_k = 8,
       .groups = 8,
       .top_groups = 4,
       .sigmoid = true,
       .bias = true,
       .group_top2 = true,
       .normalize = true,
       .scale = 2.5f},
      {.experts = 384, .top_k = 8, .sigmoid = true, .bias = true, .normalize = true},
      {.experts = 3, .top_k = 3, .normalize = true},
      {.experts = 1, .top_k = 1},
  };
  for (const Routing& r : kRoutings) {
    SCOPED_TRACE(r.experts);
    const auto logits = random_floats(size_t(r.experts) * 70, 1 + r.experts, 2);
    const auto bias = random_floats(r.experts, 3, 0.3f);
    const Routed got = route(stream, r, logits, bias);
    for (int32_t t = 0; t < 70; ++t)
      expect_token(r, logits.data() + t * r.experts, bias, got.ids.data() + t * r.top_k,
                   got.weights.data() + t * r.top_k);
  }
}

TEST(MoeRoute, TiesGoToTheLowerIndex) {
  TestStream stream(1);
  const Routing r{.experts = 8, .top_k = 3, .groups = 4, .top_groups = 2};
  const Routed got = route(stream, r, std::vector<float>(8, 1.0f), {});
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2}));
}

// A poisoned row must not index out of bounds, nor reach others.
// One NaN among a row's scores, or in the bias, and no choice is right: the row's weights say so.
TEST(MoeRoute, NanMakesTheRowNan) {
  TestStream stream(1);
  for (const bool sigmoid : {false, true}) {
    Routing r{.experts = 8, .top_k = 3, .groups = 2, .top_groups = 1, .sigmoid = sigmoid};
    std::vector<float> logits = random_floats(16, 5), bias(8, 0.0f);
    logits[5] = std::numeric_limits<float>::quiet_NaN();  // of the first token
    const Routed clean = route(stream, r, random_floats(16, 5), bias);
    Routed out = route(stream, r, logits, bias);
    EXPECT_EQ(std::vector<int32_t>(out.ids.begin(), out.ids.begin() + 3),
              (std::vector<int32_t>{0, 1, 2}));
    for (int j = 0; j < 3; ++j) {
      EXPECT_TRUE(std::isnan(out.weights[j]));
      EXPECT_EQ(out.ids[3 + j], clean.ids[3 + j]);  // and does not reach others
      EXPECT_EQ(out.weights[3 + j], clean.weights[3 + j]);
    }
    r.bias = true;
    std::fill(bias.begin(), bias.end(), std::numeric_limits<float>::quiet_NaN());
    out = route(stream, r, random_floats(16, 5), bias);
    for (float w : out.weights) EXPECT_TRUE(std::isnan(w));
  }
}

TEST(MoeDispatch, SortGroupsPairsAndCombineUndoesIt) {
  TestStream stream(2);
  constexpr int32_t kTokens = 37, kTopK = 3, kExperts = 9, kDim = 21;
  std::mt19937 rng(7);
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < kTokens; ++t) {
    std::vector<int32_t> all(kExperts - 1);  // the last expert has no token
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), rng);
    ids.insert(ids.end(), all.begin(), all.begin() + kTopK);
  }
  std::vector<int32_t> offsets(kExperts + 1), token_of_row(kTokens * kTopK), row(kTokens * kTopK);
  stream.run(table().moe_sort, {.ids = ids.data(),
                                .tokens = kTokens,
                                .top_k = kTopK,
                                .experts = kExperts,
                                .offsets = offsets.data(),
                                .token_of_row = token_of_row.data(),
                                .row_of_pair = row.data()});
  EXPECT_EQ(offsets.front(), 0);
  EXPECT_EQ(offsets[kExperts], kTokens * kTopK);
  EXPECT_EQ(offsets[kExperts - 1], offsets[kExperts]);
  for (int32_t i = 0; i < kTokens * kTopK; ++i) {
    EXPECT_GE(row[i], offsets[ids[i]]);
    EXPECT_LT(row[i], offsets[ids[i] + 1]);
    EXPECT_EQ(token_of_row[row[i]], i / kTopK);
  }
  for (int32_t e = 0; e < kExperts; ++e)
    EXPECT_TRUE(
        std::is_sorted(token_of_row.begin() + offsets[e], token_of_row.begin() + offsets[e + 1]));

  const auto x = random_floats(kTokens * kDim, 8), weights = random_floats(kTokens * kTopK, 9);
  std::vector<float> y(kTokens * kTopK * kDim);
  stream.run(table().copy_rows, {.x = x.data(),
                                 .ldx = kDim * 4,
                                 .rows = token_of_row.data(),
                                 .count = kTokens * kTopK,
                                 .row_bytes = kDim * 4,
                                 .out = y.data()});
  std::vector<float> out(kTokens * (kDim + 2), 1.0f);
  stream.run(table().moe_combine, {.y = y.data(),
                                   .row_of_pair = row.data(),
                                   .weights = weights.data(),
                                   .tokens = kTokens,
                                   .top_k = kTopK,
                                   .n = kDim,
                                   .out = out.data(),
                                   .ldo = kDim + 2});
  for (int32_t t = 0; t < kTokens; ++t) {
    const float sum = weights[t * 3] + weights[t * 3 + 1] + weights[t * 3 + 2];
    for (int32_t i = 0; i < kDim; ++i)
      EXPECT_NEAR(out[t * (kDim + 2) + i], 1 + sum * x[t * kDim + i], 1e-5);
    EXPECT_EQ(out[t * (kDim + 2) + kDim], 1.0f);
  }
}

}  // namespace
}  // namespace attune::ops
