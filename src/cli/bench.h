// The commands of `attune bench`.
#pragma once

#include "cli/command.h"

namespace attune::cli {

int run_bench_attention(const Args& args);
int run_bench_hicache(const Args& args);
int run_bench_latency(const Args& args);
int run_bench_serving(const Args& args);

// The whole numbers that a flag lists. Errors: invalid_argument.
Result<std::vector<int32_t>> parse_counts(const char* flag, const std::vector<std::string>& texts);

}  // namespace attune::cli
