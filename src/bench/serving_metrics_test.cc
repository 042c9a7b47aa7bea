#include "bench/serving_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attune::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CallRecord record(double ttft, std::vector<double> itl, int32_t prompt, int32_t cached) {
  CallRecord r{.ok = true, .prompt_len = prompt, .cached_len = cached, .ttft = ttft, .itl = itl};
  r.output_len = static_cast<int32_t>(itl.size()) + 1;
  r.latency = ttft;
  for (double gap : itl) r.latency += gap;
  return r;
}

double number(const formats::Json& json, const char* key) {
  const formats::Json* value = json.find(key);
  if (value && value->is_number()) return value->as_double();
  ADD_FAILURE() << key << " is no number";
  return -1;
}

// numpy of [4, 1, 3, 2, 10]: mean 4, median 3, std 3.1623, percentiles 95 and 99.
TEST(TimeStats, AreNumpys) {
  const auto stats = time_stats({0.004, 0.001, 0.003, 0.002, 0.010});
  ASSERT_TRUE(stats.has_value());
  EXPECT_NEAR(stats->mean, 4.0, 1e-9);
  EXPECT_NEAR(stats->median, 3.0, 1e-9);
  EXPECT_NEAR(stats->std, 3.1622776601683795, 1e-9);
  EXPECT_NEAR(stats->p90, 7.6, 1e-9);
  EXPECT_NEAR(stats->p95, 8.8, 1e-9);
  EXPECT_NEAR(stats->p99, 9.76, 1e-9);
  EXPECT_NEAR(stats->max, 10.0, 1e-9);
  EXPECT_NEAR(time_stats({0.001, 0.002})->median, 1.5, 1e-9);
  EXPECT_FALSE(time_stats({}).has_value());
}

TEST(BugK01, WhatWasNotMeasuredIsNullAndNotZero) {
  CallRecord whole{.ok = true, .prompt_len = 8, .output_len = 4, .latency = 2.0};  // no stream
  const auto json = to_json({.backend = "openai"}, measure({whole}, 2.0));
  EXPECT_TRUE(json.find("mean_ttft_ms")->is_null());
  EXPECT_TRUE(json.find("mean_tpot_ms")->is_null());
  EXPECT_TRUE(json.find("p99_itl_ms")->is_null());
  EXPECT_DOUBLE_EQ(number(json, "mean_e2e_latency_ms"), 2000);
  EXPECT_THAT(to_table({}, measure({whole}, 2.0)), HasSubstr("not measured"));
}

TEST(BugK01, FiguresAgreeWithEachOther) {
  const ServingMetrics m = measure({record(0.5, {0.1, 0.3}, 10, 0), record(1.0, {}, 20, 0)}, 2.0);
  EXPECT_EQ(m.completed, 2);
  EXPECT_EQ(m.output_tokens, 4);
  EXPECT_NEAR(m.ttft->mean, 750, 1e-9);
  EXPECT_NEAR(m.tpot->mean, 200, 1e-9);  // the request of one token has none
  EXPECT_NEAR(m.itl->mean, 200, 1e-9);
  EXPECT_NEAR(m.e2e->max, 1000, 1e-9);
  EXPECT_NEAR(m.concurrency, (0.9 + 1.0) / 2.0, 1e-9);
  const auto json = to_json({}, m);
  EXPECT_NEAR(number(json, "output_throughput"), 2.0, 1e-9);
  EXPECT_NEAR(number(json, "input_throughput"), 15.0, 1e-9);
  EXPECT_NEAR(number(json, "total_throughput"), 17.0, 1e-9);
  EXPECT_NEAR(number(json, "request_throughput"), 1.0, 1e-9);
}

TEST(BugK07, CacheHitShareIsShown) {
  const ServingMetrics m = measure({record(1, {1}, 100, 64), record(1, {1}, 60, 0)}, 1.0);
  EXPECT_DOUBLE_EQ(number(to_json({}, m), "total_cached_tokens"), 64);
  EXPECT_DOUBLE_EQ(number(to_json({}, m), "cache_hit_rate"), 0.4);
  EXPECT_THAT(to_table({}, m), HasSubstr("64 (40.00 %)"));
}

TEST(BugK07, CacheHitShareIsShownByTurn) {
  CallRecord later = record(3, {}, 100, 64), failed{.error = "closed", .turn = 1};
  later.turn = 1;
  const ServingMetrics m = measure({record(1, {}, 50, 0), later, failed}, 1.0);
  ASSERT_EQ(m.turns.size(), 2u);
  EXPECT_EQ(m.turns[1].completed, 1);
  const auto json = to_json({}, m);
  const auto& turns = json.find("turns")->as_array();
  EXPECT_DOUBLE_EQ(number(turns[0], "cache_hit_rate"), 0);
  EXPECT_DOUBLE_EQ(number(turns[1], "cache_hit_rate"), 0.64);
  EXPECT_DOUBLE_EQ(number(turns[1], "p90_ttft_ms"), 3000);
  EXPECT_THAT(to_table({}, m), HasSubstr("   2    100     64.00     3000.00"));
  EXPECT_EQ(to_json({}, measure({record(1, {}, 50, 0)}, 1)).find("turns"), nullptr);
}

TEST(Measure, CountsFailuresApartAndShowsTheFirst) {
  CallRecord bad{.error = "HTTP status 500: boom", .prompt_len = 50}, worse{.error = "closed"};
  const ServingMetrics m = measure({bad, record(1, {}, 10, 0), worse}, 1.0);
  EXPECT_EQ(m.completed, 1);
  EXPECT_EQ(m.failed, 2);
  EXPECT_EQ(m.input_tokens, 10);
  EXPECT_EQ(to_json({}, m).find("first_error")->as_string(), "HTTP status 500: boom");
  EXPECT_THAT(to_table({}, m), HasSubstr("First error: HTTP status 500: boom"));
  EXPECT_THAT(to_table({}, measure({record(1, {}, 1, 0)}, 1)), Not(HasSubstr("Failed")));
}

TEST(ToTable, IsTitledAsElsewhere) {
  const std::string text = to_table({.backend = "sglang"}, measure({record(0.5, {0.1}, 4, 0)}, 1));
  EXPECT_THAT(text, HasSubstr("============ Serving Benchmark Result ============\n"));
  EXPECT_THAT(text, HasSubstr("Mean TTFT (ms):                          500.00\n"));
  EXPECT_THAT(text, HasSubstr("Traffic request rate:                    inf\n"));
}

TEST(AddDetails, HasAnEntryForEachRequest) {
  auto json = to_json({}, ServingMetrics());
  add_details({record(0.5, {0.25}, 4, 0), CallRecord{.error = "closed"}}, json);
  EXPECT_EQ(json.find("input_lens")->dump(), "[4,0]");
  EXPECT_EQ(json.find("ttfts")->dump(), "[0.5,null]");
  EXPECT_EQ(json.find("itls")->dump(), "[[0.25],[]]");
  EXPECT_EQ(json.find("errors")->dump(), R"(["","closed"])");
}

}  // namespace
}  // namespace attune::bench
