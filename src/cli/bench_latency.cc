// attune bench latency: the engine in process.
#include <cstdio>
#include <fstream>

#include "bench/latency.h"
#include "cli/bench.h"
#include "device/trace.h"

namespace attune::cli {
namespace {

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  return file ? Status() : io_error("--trace: " + path + " cannot be written");
}

Status trace(const Invocation& call, const bench::LatencyConfig& config, const std::string& path,
             Engine& engine, device::Tracer& tracer) {
  ATTUNE_ASSIGN_OR_RETURN(auto batches, bench::trace_latency(engine, config, tracer));
  std::vector<bench::NamedTrace> traces;
  for (bench::TracedBatch& batch : batches) {
    std::printf("%s\n", (call.json ? bench::to_json(batch) : bench::to_table(batch)).c_str());
    traces.emplace_back("batch " + std::to_string(batch.batch_size), std::move(batch.trace));
  }
  return write_file(path, bench::chrome_trace(traces));
}

Status latency(const Invocation& call, const bench::LatencyConfig& config,
               const std::string& trace_path) {
  const Options options = call.settings.options();
  std::unique_ptr<device::Tracer> tracer;  // before the model is loaded: it may be refused
  if (!trace_path.empty()) {
    if (options.device == "cpu")
      return invalid_argument(
          "--trace tells what a GPU does: it needs a machine with one, and --device cuda");
    auto made = device::create_cuda_tracer(options.cuda_libraries);
    if (!made.ok()) return made.status().with_context("--trace");
    tracer = std::move(*made);
    ATTUNE_RETURN_IF_ERROR(write_file(trace_path, ""));
  }
  ATTUNE_ASSIGN_OR_RETURN(auto engine, Engine::create(options));
  ATTUNE_ASSIGN_OR_RETURN(auto rows, bench::run_latency(*engine, config));
  if (!call.json) std::printf("%s\n", bench::to_table(rows).c_str());
  for (const bench::LatencyRow& row : rows) {
    if (call.json) std::printf("%s\n", bench::to_json(row).c_str());
  }
  return tracer ? trace(call, config, trace_path, *engine, *tracer) : Status();
}

}  // namespace

int run_bench_latency(const Args& args) {
  bench::LatencyConfig config;
  std::vector<std::string> batch_sizes = {"1"};
  std::string trace_path;
  const char* group = "Benchmark";
  const std::vector<base::Flag> flags = {
      {"batch-sizes", &batch_sizes, group, "N,...", "sequences at a time, one row each"},
      {"input-len", &config.input_len, group, "TOKENS", "tokens of each prompt", {.min = 1}},
      {"output-len", &config.output_len, group, "TOKENS", "tokens generated for each", {.min = 1}},
      {"repeats", &config.repeats, group, "N", "runs of each row; medians are told", {.min = 1}},
      {"seed", &config.seed, group, "N", "of the prompts' random ids"},
      {"trace", &trace_path, group, "FILE",
       "a trace of the GPU for ui.perfetto.dev, and tables of what its decode steps consist of"},
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
  return report(latency(call, config, trace_path), call.json);
}

}  // namespace attune::cli
