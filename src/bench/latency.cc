#include "bench/latency.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>
#include <unordered_map>

#include "base/log.h"

namespace attune::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kMaxBatch = 65536;  // as many as a step may have

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// When each token of each request of a batch came.
class Timeline final : public TokenSink {
 public:
  explicit Timeline(int32_t requests) : left_(requests) {}
  void on_event(TokenEvent event) override {
    const Clock::time_point now = Clock::now();
    std::lock_guard lock(mutex_);
    std::vector<Clock::time_point>& times = times_[event.request];
    times.insert(times.end(), event.tokens.size(), now);
    if (event.finish == FinishReason::kNone) return;
    if (event.finish != FinishReason::kLength && event.finish != FinishReason::kStop)
      error_ = event.error.empty() ? "a request was aborted" : event.error;
    if (--left_ == 0) done_.notify_all();
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return left_ == 0; });
    return error_.empty() ? Status() : internal_error(error_);
  }
  const std::unordered_map<RequestId, std::vector<Clock::time_point>>& times() const {
    return times_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::unordered_map<RequestId, std::vector<Clock::time_point>> times_;
  std::string error_;
  int32_t left_;
};

Result<LatencyRow> run_once(Engine& engine, const LatencyConfig& config, int32_t batch,
                            std::mt19937_64& random) {
  std::uniform_int_distribution<TokenId> id(0, engine.model().vocab_size - 1);
  auto timeline = std::make_shared<Timeline>(batch);
  const Clock::time_point start = Clock::now();
  for (int32_t i = 0; i < batch; ++i) {
    Request request;
    for (int32_t k = 0; k < config.input_len; ++k) request.prompt.push_back(id(random));
    request.sampling = {.temperature = 0, .max_new_tokens = config.output_len, .ignore_eos = true};
    ATTUNE_RETURN_IF_ERROR(engine.submit(std::move(request), timeline).status());
  }
  ATTUNE_RETURN_IF_ERROR(timeline->wait());

  Clock::time_point last_first = start, end = start;
  std::vector<double> gaps;
  for (const auto& [request, times] : timeline->times()) {
    if (times.empty()) continue;
    last_first = std::max(last_first, times.front());
    end = std::max(end, times.back());
  }
  int64_t after = 0;  // tokens that came once every request had its first
  for (const auto& [request, times] : timeline->times()) {
    for (size_t i = 1; i < times.size(); ++i) {
      if (times[i] <= last_first) continue;
      ++after;
      gaps.push_back(seconds(times[i] - times[i - 1]));
    }
  }
  LatencyRow row{
      .batch_size = batch, .input_len = config.input_len, .output_len = config.output_len};
  row.prefill_s = seconds(last_first - start);
  row.prefill_throughput = batch * double(config.input_len) / row.prefill_s;
  row.median_decode_s = median(std::move(gaps));
  row.decode_throughput =
      end > last_first ? static_cast<double>(after) / seconds(end - last_first) : 0;
  row.total_s = seconds(end - start);
  row.overall_throughput = batch * double(config.input_len + config.output_len) / row.total_s;
  return row;
}

// Each figure's own median: a disturbed run spoils one figure, not all.
LatencyRow median_row(const std::vector<LatencyRow>& rows) {
  LatencyRow out = rows.front();
  for (double LatencyRow::*field :
       {&LatencyRow::prefill_s, &LatencyRow::prefill_throughput, &LatencyRow::median_decode_s,
        &LatencyRow::decode_throughput, &LatencyRow::total_s, &LatencyRow::overall_throughput}) {
    std::vector<double> values;
    for (const LatencyRow& row : rows) values.push_back(row.*field);
    out.*field = median(std::move(values));
  }
  return out;
}

// Sequences that end early, at the context's end, would have throughputs that nobody reached.
Status check(const Engine& engine, const LatencyConfig& config) {
  const int32_t most = engine.model().max_model_len;
  if (int64_t{config.input_len} + config.output_len > most) {
    return invalid_argument(
        base::cat("--input-len ", config.input_len, " and --output-len ", config.output_len,
                  " together are above the model's context of ", most, " tokens"));
  }
  for (int32_t batch : config.batch_sizes) {
    if (batch > kMaxBatch) {
      return invalid_argument(
          base::cat("--batch-sizes: ", batch, " is above the ", kMaxBatch, " that are measured"));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<LatencyRow>> run_latency(Engine& engine, const LatencyConfig& config) {
  ATTUNE_RETURN_IF_ERROR(check(engine, config));
  std::vector<LatencyRow> rows;
  std::mt19937_64 random(config.seed);
  for (int32_t batch : config.batch_sizes) {
    std::vector<LatencyRow> runs;
    for (int32_t i = 0; i <= config.repeats; ++i) {
      ATTUNE_ASSIGN_OR_RETURN(const LatencyRow row, run_once(engine, config, batch, random));
      if (i > 0 || config.repeats == 0) runs.push_back(row);
    }
    rows.push_back(median_row(runs));
  }
  return rows;
}

std::string to_json(const LatencyRow& r) {
  return base::cat("{\"batch_size\":", r.batch_size, ",\"input_len\":", r.input_len,
                   ",\"output_len\":", r.output_len, ",\"prefill_latency\":", r.prefill_s,
                   ",\"prefill_throughput\":", r.prefill_throughput,
                   ",\"median_decode_latency\":", r.median_decode_s,
                   ",\"decode_throughput\":", r.decode_throughput, ",\"total_latency\":", r.total_s,
                   ",\"overall_throughput\":", r.overall_throughput, "}");
}

std::string to_table(const std::vector<LatencyRow>& rows) {
  std::string out =
      "batch  input  output  prefill s  prefill tok/s  decode ms  decode tok/s  total s  all "
      "tok/s\n";
  for (const LatencyRow& r : rows) {
    char line[160];
    std::snprintf(line, sizeof line, "%5d  %5d  %6d  %9.3f  %13.1f  %9.2f  %12.1f  %7.3f  %9.1f\n",
                  r.batch_size, r.input_len, r.output_len, r.prefill_s, r.prefill_throughput,
                  r.median_decode_s * 1e3, r.decode_throughput, r.total_s, r.overall_throughput);
    out += line;
  }
  return out;
}

}  // namespace attune::bench
