#include "bench/latency.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>
#include <unordered_map>

#include "base/log.h"
#include "base/quote.h"

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

struct Run {
  LatencyRow row;
  StepWindow decode;  // from the last first token to the first last one: the whole batch decodes
};

// In Clock's nanoseconds, which are a trace's.
int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

Result<Run> run_once(Engine& engine, const LatencyConfig& config, int32_t batch,
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

  Clock::time_point last_first = start, end = start, first_end = Clock::time_point::max();
  std::vector<double> gaps;
  for (const auto& [request, times] : timeline->times()) {
    if (times.empty()) continue;
    last_first = std::max(last_first, times.front());
    end = std::max(end, times.back());
    first_end = std::min(first_end, times.back());
  }
  int64_t after = 0;  // tokens that came once every request had its first
  int32_t steps = 0;  // of those in which the whole batch took part
  for (const auto& [request, times] : timeline->times()) {
    int32_t together = 0;
    for (size_t i = 1; i < times.size(); ++i) {
      if (times[i] <= last_first) continue;
      ++after;
      together += times[i] <= first_end;
      gaps.push_back(seconds(times[i] - times[i - 1]));
    }
    // Others' tokens of the last such step may have been told of after first_end.
    steps = std::max(steps, together);
  }
  Run run{
      .row = {.batch_size = batch, .input_len = config.input_len, .output_len = config.output_len},
      .decode = {
          .begin_ns = nanoseconds(last_first), .end_ns = nanoseconds(first_end), .steps = steps}};
  LatencyRow& row = run.row;
  row.prefill_s = seconds(last_first - start);
  row.prefill_throughput = batch * double(config.input_len) / row.prefill_s;
  row.median_decode_s = median(std::move(gaps));
  row.decode_throughput =
      end > last_first ? static_cast<double>(after) / seconds(end - last_first) : 0;
  row.total_s = seconds(end - start);
  row.overall_throughput = batch * double(config.input_len + config.output_len) / row.total_s;
  return run;
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
      ATTUNE_ASSIGN_OR_RETURN(const Run run, run_once(engine, config, batch, random));
      if (i > 0 || config.repeats == 0) runs.push_back(run.row);
    }
    rows.push_back(median_row(runs));
  }
  return rows;
}

Result<std::vector<TracedBatch>> trace_latency(Engine& engine, const LatencyConfig& config,
                                               device::Tracer& tracer) {
  ATTUNE_RETURN_IF_ERROR(check(engine, config));
  std::vector<TracedBatch> all;
  std::mt19937_64 random(config.seed);
  for (int32_t batch : config.batch_sizes) {
    ATTUNE_RETURN_IF_ERROR(tracer.start());
    const Result<Run> run = run_once(engine, config, batch, random);
    ATTUNE_ASSIGN_OR_RETURN(device::Trace trace, tracer.stop());
    ATTUNE_RETURN_IF_ERROR(run.status());
    if (trace.activities.empty())
      return invalid_argument("--trace: nothing ran on a GPU: choose --device cuda");
    if (run->decode.steps < 1)
      return invalid_argument(
          "--trace: no step in which the whole batch decodes: raise --output-len");
    const StepTimes times = step_times(trace, run->decode);
    all.push_back({.batch_size = batch, .times = times, .trace = std::move(trace)});
  }
  return all;
}

std::string to_json(const TracedBatch& b) {
  const StepTimes& k = b.times;
  std::string out = base::cat("{\"batch_size\":", b.batch_size, ",\"steps\":", k.steps,
                              ",\"step_us\":", k.step_us, ",\"idle\":", k.idle);
  for (size_t i = 0; i < kFamilies; ++i)
    out += base::cat(",\"", family_name(static_cast<Family>(i)), "\":", k.shares[i]);
  out += ",\"kernels\":[";
  for (const KernelTime& t : k.kernels) {
    out += base::cat(&t == k.kernels.data() ? "" : ",", "{\"name\":", base::json_quote(t.name),
                     ",\"family\":\"", family_name(t.family), "\",\"launches\":", t.launches,
                     ",\"us\":", t.us, ",\"busy_us\":", t.busy_us, ",\"idle_us\":", t.idle_us, "}");
  }
  return out + "]}";
}

std::string to_table(const TracedBatch& b) {
  const StepTimes& k = b.times;
  char line[256];
  std::snprintf(line, sizeof line, "batch %d: %d decode steps of %.3f ms, idle %.2f %%",
                b.batch_size, k.steps, k.step_us / 1e3, k.idle * 100);
  std::string out = line;
  for (size_t i = 0; i < kFamilies; ++i) {
    std::snprintf(line, sizeof line, ", %s %.1f %%", family_name(static_cast<Family>(i)),
                  k.shares[i] * 100);
    out += line;
  }
  out += "\n  us/step  launches  us each  idle before  begin to end  family     kernel\n";
  for (const KernelTime& t : k.kernels) {
    std::snprintf(line, sizeof line, "%9.1f  %8.2f  %7.2f  %11.2f  %12.1f  %-9s  %.120s\n", t.us,
                  t.launches, t.launches > 0 ? t.us / t.launches : 0, t.idle_us, t.busy_us,
                  family_name(t.family), t.name.c_str());
    out += line;
  }
  return out;
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
