// What the decode steps of a trace consist of: how long the GPU idled, and which kernels had the
// rest of the time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/trace.h"

namespace attune::bench {

enum class Family : uint8_t { kProducts, kAttention, kSampling, kRest };
inline constexpr size_t kFamilies = 4;
const char* family_name(Family family);  // "products"

// Name with its namespaces, without return type, arguments and template arguments.
std::string short_name(std::string_view demangled);
// By what a short name has in it: kernels of ours, FlashInfer's, cuDNN's, cuBLASLt's.
Family family_of(std::string_view short_name);

// A span of a trace, in its clock, that holds nothing but decode steps of one batch.
struct StepWindow {
  int64_t begin_ns = 0, end_ns = 0;
  int32_t steps = 0;
};

// Kernels of one short name. Per step, over the window.
struct KernelTime {
  std::string name;
  Family family = Family::kRest;
  double launches = 0;
  double us = 0;       // in which it was the oldest that ran
  double busy_us = 0;  // from begin to end, in which others may have run too
  double idle_us = 0;  // in which nothing ran, before it began
};

struct StepTimes {
  int32_t steps = 0;
  double step_us = 0;
  double idle = 0;                         // share of the step in which nothing ran
  std::array<double, kFamilies> shares{};  // of the step; with `idle` they add up to 1
  std::vector<KernelTime> kernels;         // longest us first
};

// Every instant is counted once, for the activity that has run longest: with programmatic dependent
// launch a kernel begins while the one before it still runs, and then waits for it, so that sums of
// durations would count the wait as work. A kernel thus has the time from its predecessor's end, or
// from its own begin where that is later, to its own end. REQUIRES: window.steps > 0.
StepTimes step_times(const device::Trace& trace, const StepWindow& window);

// A trace and how its process is called in the file.
using NamedTrace = std::pair<std::string, device::Trace>;
// In the Trace Event format, which chrome://tracing and ui.perfetto.dev read. Activities that
// overlap lie on different threads.
std::string chrome_trace(const std::vector<NamedTrace>& traces);

}  // namespace attune::bench
