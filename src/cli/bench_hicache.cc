// attune bench hicache: copies of pages between device and host.
#include <cstdio>
#include <utility>

#include "bench/hicache.h"
#include "cli/bench.h"
#include "engine/inputs.h"

namespace attune::cli {
namespace {

Status hicache(const Invocation& call, const bench::HicacheConfig& config) {
  ATTUNE_ASSIGN_OR_RETURN(const auto device, engine::create_device(call.settings.options()));
  bool first = true;
  return bench::run_hicache(config, *device, [&](const bench::HicacheRow& row) {
    if (std::exchange(first, false) && !call.json)
      std::printf("%s\n%s\n", device->info().name.c_str(), bench::hicache_header().c_str());
    std::printf("%s\n",
                (call.json ? bench::to_json(row, device->info()) : bench::to_line(row)).c_str());
    std::fflush(stdout);
  });
}

}  // namespace

int run_bench_hicache(const Args& args) {
  bench::HicacheConfig config;
  std::vector<std::string> pieces = {"4", "16", "32", "64", "128", "256"};
  const char* group = "Benchmark";
  const std::vector<base::Flag> flags = {
      {"io", &config.io, group, "NAME,...", "direct, kernel; empty: both"},
      {"layouts", &config.layouts, group, "NAME,...",
       "layer_first, page_first, page_first_direct; empty: all"},
      {"pieces", &pieces, group, "KIB,...", "sizes of one page in one layer, multiples of 4"},
      {"pool-mib", &config.pool_mib, group, "MIB", "of each pool", {.min = 512}},
      {"seconds", &config.seconds, group, "S", "of each measurement", {.min = 0.01}},
      {"rate",
       &config.bytes_per_second,
       group,
       "BYTES/S",
       "the most in each direction; 0: no limit",
       {.min = 0}},
      {"beside", &config.beside, group, "NAME",
       "an attention backend: copies beside its decode (64 x 4,096 tokens); else beside a kernel "
       "that only reads"},
  };
  Invocation call;
  const Usage usage{
      "bench hicache",
      "",
      "Times copies of random pages between device and host, by both kinds of IO, alone and (on a "
      "Hopper\nGPU) beside a kernel that reads device memory at the full rate. With --json one "
      "object a line.",
      0,
      false,
      {"Device"}};
  if (auto code = read_command_line(usage, args, flags, call)) return *code;
  auto sizes = parse_counts("--pieces", pieces);
  if (!sizes.ok()) return report(sizes.status(), call.json);
  config.pieces = *sizes;
  return report(hicache(call, config), call.json);
}

}  // namespace attune::cli
