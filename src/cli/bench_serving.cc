// attune bench serving: load on a server over HTTP.
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/log.h"
#include "bench/serving.h"
#include "cli/bench.h"
#include "cli/session.h"

namespace attune::cli {
namespace {

struct ServingArgs {
  bench::ServingConfig config;
  double request_rate = INFINITY;
  std::string output_file;
  bool output_details = false;

  std::vector<base::Flag> flags();
};

std::vector<base::Flag> ServingArgs::flags() {
  bench::WorkloadConfig& work = config.workload;
  const char* target = "Server";
  const char* prompts = "Prompts";
  const char* load = "Load";
  const char* output = "Output";
  return {
      {"base-url", &config.base_url, target, "URL",
       "where it is, with or without /v1; empty: --host and --port"},
      {"backend",
       &config.backend,
       target,
       "",
       "its form: /generate, /v1/completions or /v1/chat/completions",
       {.choices = {"attune", "sglang", "openai", "openai-chat"}}},
      {"model", &config.model, target, "NAME",
       "model to ask for; empty: the first that the server lists"},
      {"dataset-name",
       &work.dataset,
       prompts,
       "",
       "where prompts come from",
       {.choices = {"random", "random-ids", "generated-shared-prefix", "lengths-file",
                    "multi-turn"}}},
      {"dataset-path", &work.path, prompts, "FILE",
       "of lengths-file: {\"input_lens\": [...], \"output_lens\": [...]}"},
      {"num-prompts", &work.num_prompts, prompts, "N", "requests in all", {.min = 1}},
      {"random-input-len", &work.input_len, prompts, "TOKENS", "tokens of a prompt", {.min = 1}},
      {"random-output-len", &work.output_len, prompts, "TOKENS", "tokens to generate", {.min = 1}},
      {"random-range-ratio",
       &work.range_ratio,
       prompts,
       "X",
       "lengths are drawn from X times these on",
       {.min = 0, .max = 1}},
      {"gsp-num-groups",
       &work.gsp_groups,
       prompts,
       "N",
       "groups of prompts that begin alike",
       {.min = 1}},
      {"gsp-prompts-per-group",
       &work.gsp_prompts_per_group,
       prompts,
       "N",
       "prompts in each",
       {.min = 1}},
      {"gsp-system-prompt-len",
       &work.gsp_system_len,
       prompts,
       "TOKENS",
       "what a group has in common",
       {.min = 1}},
      {"gsp-question-len",
       &work.gsp_question_len,
       prompts,
       "TOKENS",
       "what each prompt adds",
       {.min = 1}},
      {"gsp-output-len", &work.gsp_output_len, prompts, "TOKENS", "tokens to generate", {.min = 1}},
      {"num-users", &work.num_users, prompts, "N", "of multi-turn: chats", {.min = 1}},
      {"num-turns", &work.num_turns, prompts, "N", "questions of each", {.min = 1}},
      {"turn-input-len",
       &work.turn_input_len,
       prompts,
       "TOKENS",
       "new tokens of a turn; its prompt is the whole chat",
       {.min = 1}},
      {"turn-output-len",
       &work.turn_output_len,
       prompts,
       "TOKENS",
       "tokens to generate",
       {.min = 1}},
      {"shared-system-len",
       &work.shared_system_len,
       prompts,
       "TOKENS",
       "what all chats begin with",
       {.min = 0}},
      {"seed", &work.seed, prompts, "N", "of prompts and gaps"},
      {"request-rate",
       &request_rate,
       load,
       "X",
       "requests a second, with random gaps; inf: all at once",
       {.min = 1e-6}},
      {"max-concurrency",
       &config.load.max_concurrency,
       load,
       "N",
       "requests under way at a time; 0: no bound",
       {.min = 0}},
      {"warmup-requests",
       &config.warmup_requests,
       load,
       "N",
       "requests before the clock starts",
       {.min = 0}},
      {"idle-timeout",
       &config.load.idle_timeout_s,
       load,
       "SECONDS",
       "a request that brings no byte for so long has failed",
       {.min = 0.001}},
      {"temperature",
       &config.temperature,
       load,
       "X",
       "-1: 0.6 for a lengths file, else 0",
       {.min = -1, .max = 100}},
      {"flush-cache", &config.flush_cache, load, "",
       "empty the server's prefix cache after the warm-up"},
      {"disable-stream", &config.disable_stream, load, "", "ask for whole answers"},
      {"disable-ignore-eos", &config.disable_ignore_eos, load, "", "let answers end early"},
      {"output-file", &output_file, output, "FILE", "append the result as one line of JSON"},
      {"output-details", &output_details, output, "",
       "with every request's lengths, times and text"},
  };
}

// Only openai-chat sends text; the others send ids.
Result<std::shared_ptr<const text::Tokenizer>> tokenizer_for(const ServingArgs& args,
                                                             const Options& options) {
  if (args.config.backend != "openai-chat") return std::shared_ptr<const text::Tokenizer>();
  auto tokenizer = load_tokenizer(options);
  if (!tokenizer.ok())
    return tokenizer.status().with_context("openai-chat sends text, which needs a tokenizer");
  return tokenizer;
}

Status append_line(const std::string& path, const std::string& line) {
  std::ofstream file(path, std::ios::app | std::ios::binary);
  file << line << '\n' << std::flush;
  return file ? Status() : io_error(base::cat("--output-file: cannot write ", path));
}

// OpenAI clients are given .../v1; paths here begin above it.
std::string without_v1(std::string url) {
  while (url.ends_with("/")) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  return url;
}

Status serving(const Invocation& call, ServingArgs& args) {
  const Options& options = call.settings.options();
  if (args.config.base_url.empty()) {
    const bool v6 = options.host.find(':') != std::string::npos;
    args.config.base_url =
        base::cat("http://", v6 ? "[" : "", options.host, v6 ? "]" : "", ":", options.port);
  }
  args.config.base_url = without_v1(args.config.base_url);
  args.config.api_key = options.api_key;
  args.config.load.request_rate = std::isinf(args.request_rate) ? 0 : args.request_rate;
  args.config.load.seed = args.config.workload.seed;
  ATTUNE_ASSIGN_OR_RETURN(auto tokenizer, tokenizer_for(args, options));
  ATTUNE_ASSIGN_OR_RETURN(auto result, bench::run_serving(args.config, tokenizer.get()));
  formats::Json json = bench::to_json(result.setup, result.metrics);
  if (args.output_details) bench::add_details(result.records, json);
  if (!args.output_file.empty()) ATTUNE_RETURN_IF_ERROR(append_line(args.output_file, json.dump()));
  std::printf("%s\n", call.json ? json.dump().c_str()
                                : bench::to_table(result.setup, result.metrics).c_str());
  return {};
}

}  // namespace

int run_bench_serving(const Args& args) {
  ServingArgs own;
  own.config.base_url.clear();
  Invocation call;
  const Usage usage{"bench serving",
                    "",
                    "Puts load on a server over HTTP and tells throughput and times as SGLang's "
                    "bench_serving does.",
                    0,
                    false,
                    {"host", "port", "api-key", "tokenizer", "log-level"}};
  if (auto code = read_command_line(usage, args, own.flags(), call)) return *code;
  return report(serving(call, own), call.json);
}

}  // namespace attune::cli
