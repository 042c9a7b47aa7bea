#include "ops/sample/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

namespace attune::ops {
namespace {

std::vector<float> random_logits(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

Sampled sample(std::vector<float> logits, const SamplingParams& s, uint64_t seed = 0,
               int position = 0, std::span<const TokenCount> counts = {},
               std::span<const TokenId> forbidden = {}, int top = -1) {
  Sampler sampler;
  return sampler.sample({.logits = logits.data(),
                         .vocab = static_cast<int32_t>(logits.size()),
                         .sampling = &s,
                         .seed = seed,
                         .position = position,
                         .counts = counts,
                         .forbidden = forbidden,
                         .top_logprobs = top});
}

// Draws often and compares frequencies with `expected`; 5 sigma.
void expect_distribution(const std::vector<float>& logits, const SamplingParams& s,
                         const std::vector<double>& expected) {
  const int draws = 20000;
  std::vector<int> seen(logits.size());
  for (int i = 0; i < draws; ++i) ++seen[sample(logits, s, 42, i).token];
  for (size_t t = 0; t < logits.size(); ++t) {
    const double sigma = std::sqrt(expected[t] * (1 - expected[t]) / draws);
    EXPECT_NEAR(seen[t] / double(draws), expected[t], 5 * sigma + 1e-12) << "token " << t;
  }
}

std::vector<double> softmax(const std::vector<float>& x, double temperature) {
  double sum = 0;
  std::vector<double> p(x.size());
  for (size_t i = 0; i < x.size(); ++i) sum += p[i] = std::exp(x[i] / temperature);
  for (double& v : p) v /= sum;
  return p;
}

void renormalise(std::vector<double>& p) {
  double sum = 0;
  for (double v : p) sum += v;
  for (double& v : p) v /= sum;
}

// Zeroes all but the `keep` likeliest.
std::vector<double> head(std::vector<double> p, size_t keep) {
  std::vector<double> sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());
  for (double& v : p)
    if (v < sorted[keep - 1]) v = 0;
  renormalise(p);
  return p;
}

// Random123's known answer for philox4x32-10 with zero counter and key: 6627e8d5 e169c58d ...
TEST(Sample, PhiloxKnownAnswer) {
  const uint64_t bits = (uint64_t{0xe169c58d} << 32 | 0x6627e8d5) >> 11;
  EXPECT_EQ(philox_uniform(0, 0), static_cast<double>(bits) * 0x1p-53);
  EXPECT_NE(philox_uniform(0, 1), philox_uniform(0, 0));
  EXPECT_NE(philox_uniform(1, 0), philox_uniform(0, 0));
}

TEST(Sample, GreedyTakesTheFirstOfEquals) {
  EXPECT_EQ(sample({1, 5, 5, 2}, {.temperature = 0}).token, 1);
  EXPECT_EQ(sample({1, 5, 7, 2}, {.temperature = 1e-9f}).token, 2);
  EXPECT_EQ(sample({1, 5, 7, 2}, {.temperature = 1, .top_k = 1}).token, 2);
}

TEST(Sample, PlainTemperatureFollowsTheSoftmax) {
  const auto logits = random_logits(50, 1);
  for (float t : {0.5f, 1.0f, 2.0f})
    expect_distribution(logits, {.temperature = t}, softmax(logits, t));
}

TEST(Sample, TopK) {
  const auto logits = random_logits(300, 2);
  expect_distribution(logits, {.temperature = 1, .top_k = 5}, head(softmax(logits, 1), 5));
}

TEST(Sample, TopPKeepsTheSmallestSetThatReachesP) {
  const auto logits = random_logits(300, 3);
  auto p = softmax(logits, 1.5);
  std::vector<double> sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());
  size_t keep = 0;
  double sum = 0;
  while (sum < 0.8) sum += sorted[keep++];
  expect_distribution(logits, {.temperature = 1.5f, .top_p = 0.8f}, head(p, keep));
  // Nearly all of a flat distribution: the second, full pass.
  const std::vector<float> flat(3000, 0.0f);
  std::map<TokenId, int> seen;
  for (int i = 0; i < 2000; ++i)
    ++seen[sample(flat, {.temperature = 1, .top_p = 0.99f}, 1, i).token];
  EXPECT_GT(seen.size(), 1000u);
  EXPECT_LE(seen.rbegin()->first, 2970);  // ties by id: the tail is cut
}

TEST(Sample, MinPIsRelativeToTheLikeliest) {
  const auto logits = random_logits(100, 4);
  auto p = softmax(logits, 1);
  const double bound = 0.1 * *std::max_element(p.begin(), p.end());
  for (double& v : p)
    if (v < bound) v = 0;
  renormalise(p);
  expect_distribution(logits, {.temperature = 1, .min_p = 0.1f}, p);
  expect_distribution(logits, {.temperature = 1, .top_k = 50, .min_p = 0.1f}, p);
}

TEST(Sample, PenaltiesAndBias) {
  const TokenCount counts[] = {{0, 2, false}, {1, 0, true}, {2, 1, true}};
  // Repetition divides positive logits and multiplies negative ones, prompt and output alike.
  EXPECT_EQ(
      sample({4, 3.9f, -1, 3}, {.temperature = 0, .repetition_penalty = 2}, 0, 0, counts).token, 3);
  // Also a tiny one leaves numbers that can be drawn from.
  const float tiny = std::numeric_limits<float>::min();
  EXPECT_EQ(
      sample({9, 3, -1, 3}, {.temperature = 0, .repetition_penalty = tiny}, 0, 0, counts).token, 0);
  EXPECT_GE(
      sample({9, 3, -1, 3}, {.temperature = 1, .repetition_penalty = tiny}, 0, 0, counts).token, 0);
  // Presence touches the output only: token 1 was in the prompt.
  EXPECT_EQ(sample({4, 3.9f, -1, 3}, {.temperature = 0, .presence_penalty = 1}, 0, 0, counts).token,
            1);
  // Frequency by count.
  EXPECT_EQ(
      sample({4, 2.1f, 3.1f, 0}, {.temperature = 0, .frequency_penalty = 1}, 0, 0, counts).token,
      1);
  EXPECT_EQ(sample({4, 1, 1, 1}, {.temperature = 0, .logit_bias = {{3, 5.0f}, {900, 9.0f}}}).token,
            3);
}

TEST(Sample, ForbiddenIsNeverDrawn) {
  const TokenId forbidden[] = {0};
  for (int i = 0; i < 200; ++i)
    EXPECT_EQ(sample({50, 0, -200}, {.temperature = 1}, 7, i, {}, forbidden).token, 1);
}

TEST(Sample, LogprobsAreTheModelsOwn) {
  const std::vector<float> logits = {1, 2, 3, 4};
  const double lse = std::log(std::exp(1) + std::exp(2) + std::exp(3) + std::exp(4));
  const Sampled s =
      sample(logits, {.temperature = 0, .logit_bias = {{0, 100.0f}}}, 0, 0, {}, {}, 2);
  EXPECT_EQ(s.token, 0);
  EXPECT_NEAR(s.logprob.chosen.logprob, 1 - lse, 1e-6);
  ASSERT_EQ(s.logprob.top.size(), 2u);
  EXPECT_EQ(s.logprob.top[0].token, 3);
  EXPECT_NEAR(s.logprob.top[0].logprob, 4 - lse, 1e-6);
  EXPECT_EQ(s.logprob.top[1].token, 2);
}

TEST(Sample, NonFiniteLogitsAreReportedNotDrawn) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  for (float bad : {nan, inf}) {
    EXPECT_EQ(sample({1, bad, 2}, {.temperature = 0}).token, -1);
    EXPECT_EQ(sample({1, bad, 2}, {.temperature = 1, .top_p = 0.5f}).token, -1);
  }
  EXPECT_EQ(sample({-inf, -inf}, {.temperature = 1}).token, -1);
}

// The same seed and position give the same token whatever else is drawn in between.
TEST(Sample, DrawDependsOnSeedAndPositionOnly) {
  const auto logits = random_logits(1000, 5);
  Sampler one;
  for (int i = 0; i < 50; ++i) {
    std::vector<float> a = logits, noise = random_logits(1000, i);
    const SamplingParams s{.temperature = 1, .top_p = 0.9f};
    one.sample({.logits = noise.data(), .vocab = 1000, .sampling = &s, .seed = 3, .position = i});
    EXPECT_EQ(
        one.sample({.logits = a.data(), .vocab = 1000, .sampling = &s, .seed = 9, .position = i})
            .token,
        sample(logits, s, 9, i).token);
  }
}

}  // namespace
}  // namespace attune::ops
