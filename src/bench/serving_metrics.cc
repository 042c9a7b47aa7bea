#include "bench/serving_metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/log.h"

namespace attune::bench {
namespace {

using formats::Json;

constexpr size_t kWidth = 50, kLabelWidth = 40;

// REQUIRES: sorted, not empty.
double percentile(const std::vector<double>& sorted, double percent) {
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double per_second(int64_t count, double duration_s) {
  return duration_s > 0 ? static_cast<double>(count) / duration_s : 0;
}

Json or_null(bool known, Json value) {
  if (!known) value = Json();
  return value;
}

// Of ServingMetrics and TurnMetrics.
template <typename Metrics>
double hit_share(const Metrics& m) {
  return m.input_tokens > 0
             ? static_cast<double>(m.cached_tokens) / static_cast<double>(m.input_tokens)
             : 0;
}

void set_times(Json& json, const std::string& name, const std::optional<TimeStats>& stats) {
  const auto set = [&](const char* prefix, double TimeStats::*field) {
    json.set(prefix + ("_" + name + "_ms"),
             or_null(stats.has_value(), stats.value_or(TimeStats()).*field));
  };
  set("mean", &TimeStats::mean);
  set("median", &TimeStats::median);
  set("std", &TimeStats::std);
  if (name == "ttft") set("p90", &TimeStats::p90);
  if (name == "itl") set("p95", &TimeStats::p95);
  set("p99", &TimeStats::p99);
  if (name == "itl") set("max", &TimeStats::max);
}

std::string rule(const std::string& title, char fill) {
  const size_t pad = kWidth > title.size() ? kWidth - title.size() : 0;
  return std::string(pad / 2, fill) + title + std::string(pad - pad / 2, fill) + "\n";
}

std::string line(std::string label, const std::string& value) {
  label.resize(std::max(label.size(), kLabelWidth), ' ');
  return label + " " + value + "\n";
}

std::string fixed(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string times(const char* title, const char* name, const std::optional<TimeStats>& stats,
                  std::initializer_list<std::pair<const char*, double TimeStats::*>> fields) {
  std::string out = rule(title, '-');
  for (const auto& [which, field] : fields) {
    out += line(base::cat(which, " ", name, " (ms):"),
                stats ? fixed((*stats).*field) : "not measured");
  }
  return out;
}

std::vector<TurnMetrics> measure_turns(const std::vector<CallRecord>& records) {
  int32_t last = 0;
  for (const CallRecord& record : records) last = std::max(last, record.turn);
  if (last == 0) return {};
  std::vector<TurnMetrics> turns(static_cast<size_t>(last) + 1);
  std::vector<std::vector<double>> ttft(turns.size());
  for (const CallRecord& record : records) {
    if (!record.ok) continue;
    TurnMetrics& turn = turns[static_cast<size_t>(record.turn)];
    ++turn.completed;
    turn.input_tokens += record.prompt_len;
    turn.cached_tokens += record.cached_len;
    if (record.ttft) ttft[static_cast<size_t>(record.turn)].push_back(*record.ttft);
  }
  for (size_t i = 0; i < turns.size(); ++i) turns[i].ttft = time_stats(std::move(ttft[i]));
  return turns;
}

Json turns_json(const std::vector<TurnMetrics>& turns) {
  Json::Array list;
  for (const TurnMetrics& turn : turns) {
    Json json;
    json.set("completed", turn.completed);
    json.set("input_tokens", turn.input_tokens);
    json.set("cached_tokens", turn.cached_tokens);
    json.set("cache_hit_rate", hit_share(turn));
    set_times(json, "ttft", turn.ttft);
    list.push_back(std::move(json));
  }
  return list;
}

std::string turns_table(const std::vector<TurnMetrics>& turns) {
  if (turns.empty()) return {};
  std::string out = rule("By Turn", '-') + "turn  input  cached %   TTFT mean   median      p99\n";
  for (size_t i = 0; i < turns.size(); ++i) {
    const TurnMetrics& t = turns[i];
    const TimeStats ttft = t.ttft.value_or(TimeStats());
    char text[96];
    std::snprintf(text, sizeof text, "%4zu %6lld %9.2f %11.2f %8.2f %8.2f\n", i + 1,
                  static_cast<long long>(t.completed ? t.input_tokens / t.completed : 0),
                  hit_share(t) * 100, ttft.mean, ttft.median, ttft.p99);
    out += text;
  }
  return out;
}

}  // namespace

std::optional<TimeStats> time_stats(std::vector<double> seconds) {
  if (seconds.empty()) return std::nullopt;
  for (double& value : seconds) value *= 1e3;
  std::sort(seconds.begin(), seconds.end());
  const double n = static_cast<double>(seconds.size());
  TimeStats stats;
  stats.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / n;
  double squares = 0;
  for (double value : seconds) squares += (value - stats.mean) * (value - stats.mean);
  stats.std = std::sqrt(squares / n);
  stats.median = percentile(seconds, 50);
  stats.p90 = percentile(seconds, 90);
  stats.p95 = percentile(seconds, 95);
  stats.p99 = percentile(seconds, 99);
  stats.max = seconds.back();
  return stats;
}

ServingMetrics measure(const std::vector<CallRecord>& records, double duration_s) {
  ServingMetrics m{.duration_s = duration_s};
  std::vector<double> ttft, tpot, itl, e2e;
  for (const CallRecord& record : records) {
    if (!record.ok) {
      if (m.failed++ == 0) m.first_error = record.error;
      continue;
    }
    ++m.completed;
    m.input_tokens += record.prompt_len;
    m.cached_tokens += record.cached_len;
    m.output_tokens += record.output_len;
    e2e.push_back(record.latency);
    if (!record.ttft) continue;  // not streamed
    ttft.push_back(*record.ttft);
    if (record.output_len > 1)
      tpot.push_back((record.latency - *record.ttft) / (record.output_len - 1));
    itl.insert(itl.end(), record.itl.begin(), record.itl.end());
  }
  if (duration_s > 0) m.concurrency = std::accumulate(e2e.begin(), e2e.end(), 0.0) / duration_s;
  m.ttft = time_stats(std::move(ttft));
  m.tpot = time_stats(std::move(tpot));
  m.itl = time_stats(std::move(itl));
  m.e2e = time_stats(std::move(e2e));
  m.turns = measure_turns(records);
  return m;
}

Json to_json(const ServingSetup& setup, const ServingMetrics& m) {
  Json json;
  json.set("backend", setup.backend);
  json.set("dataset_name", setup.dataset);
  json.set("request_rate", setup.request_rate > 0 ? Json(setup.request_rate) : Json("inf"));
  json.set("max_concurrency", or_null(setup.max_concurrency > 0, setup.max_concurrency));
  json.set("duration", m.duration_s);
  json.set("completed", m.completed);
  json.set("failed", m.failed);
  json.set("first_error", or_null(m.failed > 0, m.first_error));
  json.set("total_input_tokens", m.input_tokens);
  json.set("total_output_tokens", m.output_tokens);
  json.set("request_throughput", per_second(m.completed, m.duration_s));
  json.set("input_throughput", per_second(m.input_tokens, m.duration_s));
  json.set("output_throughput", per_second(m.output_tokens, m.duration_s));
  json.set("total_throughput", per_second(m.input_tokens + m.output_tokens, m.duration_s));
  set_times(json, "e2e_latency", m.e2e);
  set_times(json, "ttft", m.ttft);
  set_times(json, "tpot", m.tpot);
  set_times(json, "itl", m.itl);
  json.set("concurrency", m.concurrency);
  json.set("total_cached_tokens", m.cached_tokens);
  json.set("cache_hit_rate", hit_share(m));
  if (!m.turns.empty()) json.set("turns", turns_json(m.turns));
  return json;
}

void add_details(const std::vector<CallRecord>& records, Json& result) {
  Json::Array inputs, outputs, ttfts, itls, texts, errors;
  for (const CallRecord& record : records) {
    inputs.emplace_back(record.prompt_len);
    outputs.emplace_back(record.output_len);
    ttfts.push_back(or_null(record.ttft.has_value(), record.ttft.value_or(0)));
    itls.emplace_back(Json::Array(record.itl.begin(), record.itl.end()));
    texts.emplace_back(record.text);
    errors.emplace_back(record.error);
  }
  result.set("input_lens", std::move(inputs));
  result.set("output_lens", std::move(outputs));
  result.set("ttfts", std::move(ttfts));
  result.set("itls", std::move(itls));
  result.set("generated_texts", std::move(texts));
  result.set("errors", std::move(errors));
}

std::string to_table(const ServingSetup& setup, const ServingMetrics& m) {
  using S = TimeStats;
  std::string out = "\n" + rule(" Serving Benchmark Result ", '=');
  out += line("Backend:", setup.backend);
  out += line("Traffic request rate:", setup.request_rate > 0 ? fixed(setup.request_rate) : "inf");
  out += line("Max request concurrency:",
              setup.max_concurrency > 0 ? std::to_string(setup.max_concurrency) : "not set");
  out += line("Successful requests:", std::to_string(m.completed));
  if (m.failed) out += line("Failed requests:", std::to_string(m.failed));
  if (m.failed) out += "First error: " + m.first_error + "\n";
  out += line("Benchmark duration (s):", fixed(m.duration_s));
  out += line("Total input tokens:", std::to_string(m.input_tokens));
  out += line("Total generated tokens:", std::to_string(m.output_tokens));
  out += line("Request throughput (req/s):", fixed(per_second(m.completed, m.duration_s)));
  out += line("Input token throughput (tok/s):", fixed(per_second(m.input_tokens, m.duration_s)));
  out += line("Output token throughput (tok/s):", fixed(per_second(m.output_tokens, m.duration_s)));
  out += line("Total token throughput (tok/s):",
              fixed(per_second(m.input_tokens + m.output_tokens, m.duration_s)));
  out += line("Concurrency:", fixed(m.concurrency));
  out += line("Cached input tokens:",
              base::cat(m.cached_tokens, " (", fixed(hit_share(m) * 100), " %)"));
  out += times("End-to-End Latency", "E2E Latency", m.e2e,
               {{"Mean", &S::mean}, {"Median", &S::median}, {"P99", &S::p99}});
  out += times("Time to First Token", "TTFT", m.ttft,
               {{"Mean", &S::mean}, {"Median", &S::median}, {"P90", &S::p90}, {"P99", &S::p99}});
  out += times("Time per Output Token (excl. 1st token)", "TPOT", m.tpot,
               {{"Mean", &S::mean}, {"Median", &S::median}, {"P99", &S::p99}});
  out += times("Inter-Token Latency", "ITL", m.itl,
               {{"Mean", &S::mean},
                {"Median", &S::median},
                {"P95", &S::p95},
                {"P99", &S::p99},
                {"Max", &S::max}});
  out += turns_table(m.turns);
  return out + std::string(kWidth, '=') + "\n";
}

}  // namespace attune::bench
