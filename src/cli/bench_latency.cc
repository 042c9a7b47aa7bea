// attune bench latency: the engine in process.
#include <cstdio>

#include "bench/latency.h"
#include "cli/bench.h"

namespace attune::cli {
namespace {

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
  auto shows = engine_settings();
  shows.push_back("Memory and scheduling");
  const Usage usage{"bench latency",
                    "",
                    "Times prompts and decode steps of one batch after another, in process.\nWith "
                    "--json one object a line.",
                    0,
                    false,
                    shows};
  if (auto code = read_command_line(usage, args, flags, call)) return *code;
  auto sizes = parse_counts("--batch-sizes", batch_sizes);
  if (!sizes.ok()) return report(sizes.status(), call.json);
  config.batch_sizes = *sizes;
  return report(latency(call, config), call.json);
}

}  // namespace attune::cli
