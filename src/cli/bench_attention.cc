// attune bench attention: the backends by themselves.
#include <cstdio>
#include <utility>

#include "bench/attention.h"
#include "cli/bench.h"
#include "engine/inputs.h"

namespace attune::cli {
namespace {

Status attention(const Invocation& call, const bench::AttentionConfig& config) {
  ATTUNE_ASSIGN_OR_RETURN(const auto device, engine::create_device(call.settings.options()));
  bool first = true;
  return bench::run_attention(config, *device, [&](const bench::AttentionRow& row) {
    if (std::exchange(first, false) && !call.json)
      std::printf("%s\n%s\n", device->info().name.c_str(), bench::attention_header().c_str());
    if (!call.json) std::printf("%s\n", bench::to_line(row).c_str());
    if (call.json && row.refused.empty())
      std::printf("%s\n", bench::to_json(row, device->info()).c_str());
    std::fflush(stdout);
  });
}

}  // namespace

int run_bench_attention(const Args& args) {
  bench::AttentionConfig config;
  std::vector<std::string> page_sizes = {"16", "64"};
  const char* group = "Benchmark";
  const std::vector<base::Flag> flags = {
      {"backends", &config.backends, group, "NAME,...",
       "who is measured; empty: all of this device"},
      {"phases", &config.phases, group, "NAME,...", "decode, prefill; empty: both"},
      {"page-sizes", &page_sizes, group, "N,...", "tokens of a page"},
      {"kv-dtypes", &config.kv_dtypes, group, "NAME,...",
       "types of the cache; empty: the device's"},
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
      "same bytes.\nWith --json one object a line.",
      0,
      false,
      {"Device and types"}};
  if (auto code = read_command_line(usage, args, flags, call)) return *code;
  auto sizes = parse_counts("--page-sizes", page_sizes);
  if (!sizes.ok()) return report(sizes.status(), call.json);
  config.page_sizes = *sizes;
  return report(attention(call, config), call.json);
}

}  // namespace attune::cli
