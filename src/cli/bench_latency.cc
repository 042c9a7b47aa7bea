// attune bench latency: the engine in process.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/log.h"
#include "bench/latency.h"
#include "bench/serving.h"
#include "cli/bench.h"
#include "cli/session.h"

namespace attune::cli {
namespace {

Result<std::vector<int32_t>> parse_batch_sizes(const std::vector<std::string>& texts) {
  std::vector<int32_t> sizes;
  for (const std::string& text : texts) {
    int32_t size = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || end != text.data() + text.size() || size < 1) {
      return invalid_argument(
          base::cat("--batch-sizes: '", text, "' is not a whole number 1 or more"));
    }
    sizes.push_back(size);
  }
  return sizes;
}

Status latency(const Invocation& call, const bench::LatencyConfig& config) {
  ATTUNE_ASSIGN_OR_RETURN(auto engine, Engine::create(call.settings.options()));
  ATTUNE_ASSIGN_OR_RETURN(auto rows, bench::run_latency(*engine, config));
  if (!call.json) std::printf("%s\n", bench::to_table(rows).c_str());
  for (const bench::LatencyRow& row : rows) {
    if (call.json) std::printf("%s\n", bench::to_json(row).c_str());
  }
  return {};
}

}  // namespace

int run_bench_latency(const Args& args) {
  bench::LatencyConfig config;
  std::vector<std::string> batch_sizes = {"1"};
  const char* group = "Benchmark";
  const std::vector<base::Flag> flags = {
      {"batch-sizes", &batch_sizes, group, "N,...", "sequences at a time, one row each"},
      {"input-len", &config.input_len, group, "TOKENS", "tokens of each prompt", {.min = 1}},
      {"output-len", &config.output_len, group, "TOKENS", "tokens generated for each", {.min = 1}},
      {"repeats", &config.repeats, group, "N", "runs of each row; medians are told", {.min = 1}},
      {"seed", &config.seed, group, "N", "of the prompts' random ids"},
  };
  Invocation call;
  const Usage usage{"bench latency", "",
                    "Times prompts and decode steps of one batch after another, in process.\nWith "
                    "--json one object a line."};
  if (auto code = read_command_line(usage, args, flags, call)) return *code;
  auto sizes = parse_batch_sizes(batch_sizes);
  if (!sizes.ok()) return report(sizes.status(), call.json);
  config.batch_sizes = *sizes;
  return report(latency(call, config), call.json);
}

struct ServingFlags {
  bench::ServingConfig config;
  std::string base_url, request_rate = "inf", output_file;
  bool output_details = false;

  std::vector<base::Flag> rows();
};

std::vector<base::Flag> workload_rows(bench::WorkloadConfig& work) {
  const char* group = "Workload";
  return {
      {"dataset-name",
       &work.dataset,
       group,
       "",
       "random ids, prompts that begin alike, or lengths from a file",
       {.choices = {"random", "random-ids", "generated-shared-prefix", "lengths-file"}}},
      {"dataset-path", &work.path, group, "FILE", "of lengths-file: input_lens and output_lens"},
      {"num-prompts", &work.num_prompts, group, "N", "requests; of a file, at most", {.min = 1}},
      {"random-input-len", &work.input_len, group, "TOKENS", "longest prompt", {.min = 1}},
      {"random-output-len", &work.output_len, group, "TOKENS", "most generated", {.min = 1}},
      {"random-range-ratio",
       &work.range_ratio,
       group,
       "SHARE",
       "lengths are drawn from this share of the longest up to it",
       {.min = 0, .max = 1}},
      {"token-id-range", &work.token_id_range, group, "N", "ids are below it", {.min = 1}},
      {"gsp-num-groups", &work.gsp_groups, group, "N", "groups that begin alike", {.min = 1}},
      {"gsp-prompts-per-group", &work.gsp_prompts_per_group, group, "N", "", {.min = 1}},
      {"gsp-system-prompt-len", &work.gsp_system_len, group, "TOKENS", "shared", {.min = 1}},
      {"gsp-question-len", &work.gsp_question_len, group, "TOKENS", "not shared", {.min = 1}},
      {"gsp-output-len", &work.gsp_output_len, group, "TOKENS", "generated", {.min = 1}},
      {"seed", &work.seed, group, "N", "of lengths, ids and arrival times"},
  };
}

std::vector<base::Flag> ServingFlags::rows() {
  const char* group = "Benchmark";
  std::vector<base::Flag> rows = {
      {"base-url", &base_url, group, "URL", "the server; else --host and --port name it"},
      {"backend",
       &config.backend,
       group,
       "",
       "attune and sglang: /generate; openai: /v1/completions; openai-chat: /v1/chat/completions",
       {.choices = {"attune", "sglang", "openai", "openai-chat"}}},
      {"request-rate", &request_rate, group, "N", "requests a second, Poisson; inf: all at once"},
      {"max-concurrency",
       &config.load.max_concurrency,
       group,
       "N",
       "under way at a time; 0: any",
       {.min = 0}},
      {"warmup-requests", &config.warmup_requests, group, "N", "before, not counted", {.min = 0}},
      {"temperature",
       &config.temperature,
       group,
       "T",
       "-1: 0, and 0.6 for a lengths file",
       {.min = -1, .max = 2}},
      {"idle-timeout",
       &config.load.idle_timeout_s,
       group,
       "SECONDS",
       "a request that brings nothing for so long has failed",
       {.min = 0.001}},
      {"disable-stream", &config.disable_stream, group, "", "whole answers"},
      {"disable-ignore-eos", &config.disable_ignore_eos, group, "", "the model may end early"},
      {"flush-cache", &config.flush_cache, group, "", "empty the prefix cache after the warm-up"},
      {"output-file", &output_file, group, "FILE", "the result is appended as one line of JSON"},
      {"output-details", &output_details, group, "", "and in it every request's figures"},
  };
  for (base::Flag& row : workload_rows(config.workload)) rows.push_back(row);
  return rows;
}

Status apply(const Options& options, ServingFlags& flags) {
  bench::ServingConfig& config = flags.config;
  if (flags.request_rate != "inf") {
    const char* end = flags.request_rate.data() + flags.request_rate.size();
    auto [stop, error] = std::from_chars(flags.request_rate.data(), end, config.load.request_rate);
    if (error != std::errc() || stop != end || !std::isfinite(config.load.request_rate) ||
        config.load.request_rate <= 0) {
      return invalid_argument(base::cat("--request-rate: '", flags.request_rate,
                                        "' is neither a number above 0 nor inf"));
    }
  }
  const bool v6 = options.host.find(':') != std::string::npos;
  config.base_url = !flags.base_url.empty() ? flags.base_url
                                            : base::cat("http://", v6 ? "[" : "", options.host,
                                                        v6 ? "]" : "", ":", options.port);
  config.api_key = options.api_key;
  config.model = options.served_model_name;
  config.load.seed = config.workload.seed;
  return {};
}

Status append_line(const std::string& path, const std::string& line) {
  std::ofstream file(path, std::ios::app);
  file << line << '\n' << std::flush;
  return file ? Status() : io_error(base::cat("--output-file: cannot write ", path));
}

Status serving(const Invocation& call, ServingFlags& flags) {
  ATTUNE_RETURN_IF_ERROR(apply(call.settings.options(), flags));
  std::shared_ptr<const text::Tokenizer> tokenizer;
  if (flags.config.backend == "openai-chat") {
    auto loaded = load_tokenizer(call.settings.options());
    if (!loaded.ok())
      return loaded.status().with_context("openai-chat sends text, which needs a tokenizer");
    tokenizer = *loaded;
  }
  ATTUNE_ASSIGN_OR_RETURN(const auto result, bench::run_serving(flags.config, tokenizer.get()));
  formats::Json json = bench::to_json(result.setup, result.metrics);
  if (call.json) {
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s\n", bench::to_table(result.setup, result.metrics).c_str());
  }
  if (flags.output_details) bench::add_details(result.records, json);
  return flags.output_file.empty() ? Status() : append_line(flags.output_file, json.dump());
}

int run_serving(const Args& args) {
  ServingFlags flags;
  Invocation call;
  const Usage usage{"bench serving", "",
                    "Puts load on a server over HTTP and measures throughput and latencies, as "
                    "SGLang's bench_serving does.\nThe server may be another's: any that speaks "
                    "OpenAI's or SGLang's form."};
  if (auto code = read_command_line(usage, args, flags.rows(), call)) return *code;
  return report(serving(call, flags), call.json);
}

}  // namespace attune::cli
