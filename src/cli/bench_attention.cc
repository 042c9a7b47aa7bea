// attune bench attention: the backends by themselves.
#include <cstdio>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench/attention.h"
#include "bench/attention_report.h"
#include "cli/bench.h"
#include "engine/inputs.h"

namespace attune::cli {
namespace {

// Settings of the engine that would be taken to change what is measured; "": nothing does.
Status refuse_engine_flags(const base::Settings& settings) {
  constexpr std::pair<const char*, const char*> kOwn[] = {
      {"page-size", "--page-sizes"},
      {"kv-cache-dtype", "--kv-dtypes"},
      {"attention-backend", "--backends"},
      {"prefill-attention-backend", "--backends and --phases"},
      {"decode-attention-backend", "--backends and --phases"},
      {"enable-pdl", "--pdl"},
      {"enable-deterministic-inference", ""},
      {"no-attention-fallback", ""},
      {"assume", ""}};
  for (const auto& [name, own] : kOwn)
    if (settings.source(name) == base::SettingSource::kCommandLine)
      return invalid_argument(
          base::cat("--", name, " is the engine's and changes nothing here: ",
                    *own ? base::cat("use ", own) : std::string("leave it out")));
  return {};
}

Status attention(const Invocation& call, const bench::AttentionConfig& config) {
  ATTUNE_ASSIGN_OR_RETURN(const auto device, engine::create_device(call.settings.options()));
  std::vector<bench::AttentionRow> rows;
  const auto told = [&](const bench::AttentionRow& row) {
    if (rows.empty() && !call.json)
      std::printf("%s\n%s\n", device->info().name.c_str(), bench::attention_header().c_str());
    rows.push_back(row);
    if (!call.json) std::printf("%s\n", bench::to_line(row).c_str());
    if (call.json && row.refused.empty())
      std::printf("%s\n", bench::to_json(row, device->info()).c_str());
    std::fflush(stdout);
  };
  ATTUNE_RETURN_IF_ERROR(bench::run_attention(config, *device, told));
  const std::string summary = bench::summary(bench::compare(rows));
  if (!call.json && !summary.empty()) std::printf("\n%s", summary.c_str());
  return {};
}

}  // namespace

int run_bench_attention(const Args& args) {
  bench::AttentionConfig config;
  std::vector<std::string> page_sizes = {"16", "64"};
  const char* group = "Benchmark";
  const std::vector<base::Flag> flags = {
      {"backends", &config.backends, group, "NAME,...",
       "who is measured; empty: all of this device but reference"},
      {"phases", &config.phases, group, "NAME,...", "decode, prefill, verify; empty: all"},
      {"cases", &config.cases, group, "TEXT,...",
       "cases whose names, as they are printed, have one of these in them; empty: all"},
      {"page-sizes", &page_sizes, group, "N,...", "tokens of a page"},
      {"kv-dtypes", &config.kv_dtypes, group, "NAME,...",
       "types of the cache; empty: the device's, and fp8_e4m3 for some"},
      {"alone", &config.alone, group, "",
       "on a GPU, decode by itself, call after call; else between its neighbours in a step"},
      {"mla", &config.mla, group, "", "shapes of latent attention too"},
      {"repeats",
       &config.repeats,
       group,
       "N",
       "measurements of each row; medians are told",
       {.min = 1}},
      {"pdl", &config.pdl, group, "", "on a GPU, dependent launch"},
  };
  Invocation call;
  const Usage usage{
      "bench attention",
      "",
      "Times every attention backend over a grid of shapes, beside a bulk read of the "
      "same bytes.\nWith --json one object a line, else a summary at the end: our Hopper kernels "
      "against the others.",
      0,
      false,
      {"Device", "num-splits", "pack-gqa"}};
  if (auto code = read_command_line(usage, args, flags, call)) return *code;
  if (Status engines = refuse_engine_flags(call.settings); !engines.ok())
    return report(engines, call.json);
  config.tuning.num_splits = call.settings.options().num_splits;
  config.tuning.pack_gqa = attention::parse_toggle(call.settings.options().pack_gqa);
  auto sizes = parse_counts("--page-sizes", page_sizes);
  if (!sizes.ok()) return report(sizes.status(), call.json);
  config.page_sizes = *sizes;
  return report(attention(call, config), call.json);
}

}  // namespace attune::cli
