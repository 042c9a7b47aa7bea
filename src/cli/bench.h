// The commands of `attune bench`.
#pragma once

#include "cli/command.h"

namespace attune::cli {

int run_bench_latency(const Args& args);
int run_bench_serving(const Args& args);

}  // namespace attune::cli
