#include "bench/trace.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "base/check.h"
#include "base/log.h"
#include "base/quote.h"

namespace attune::bench {
namespace {

using device::Activity;
using device::Trace;

struct Rule {
  const char* part;
  Family family;
};
// The first that fits.
constexpr Rule kRules[] = {
    {"attention", Family::kAttention},     {"KVCache", Family::kAttention},
    {"MergeStates", Family::kAttention},   {"MLAPage", Family::kAttention},
    {"sdpa", Family::kAttention},          {"merge_rows", Family::kAttention},
    {"gemv", Family::kProducts},           {"gemm", Family::kProducts},
    {"grouped_kernel", Family::kProducts}, {"linear_f32", Family::kProducts},
    {"dequantize", Family::kProducts},     {"bias_kernel", Family::kProducts},
    {"nvjet", Family::kProducts},          {"cutlass", Family::kProducts},
    {"cublas", Family::kProducts},         {"splitK", Family::kProducts},
    {"draw_kernel", Family::kSampling},    {"sample_kernel", Family::kSampling},
    {"count_kernel", Family::kSampling},   {"fill_ids_kernel", Family::kSampling},
    {"logprobs_kernel", Family::kSampling}};

void erase_all(std::string& text, std::string_view part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at))
    text.erase(at, part.size());
}

// Of all names of a trace, which has a thousand activities for each.
std::vector<std::string> short_names(const Trace& trace) {
  std::vector<std::string> names;
  for (const std::string& name : trace.names) names.push_back(short_name(name));
  return names;
}

void append_event(std::string& out, const std::string& name, const Activity& a, size_t process,
                  size_t lane, int64_t zero) {
  char numbers[160];
  std::snprintf(numbers, sizeof numbers,
                ",\"ph\":\"X\",\"pid\":%zu,\"tid\":%zu,\"ts\":%.3f,\"dur\":%.3f,\"args\":{",
                process, lane, static_cast<double>(a.begin_ns - zero) / 1e3,
                static_cast<double>(a.end_ns - a.begin_ns) / 1e3);
  out += base::cat("{\"name\":", base::json_quote(name), ",\"cat\":\"",
                   family_name(family_of(name)), "\"", numbers, "\"stream\":", a.stream);
  if (a.kind == Activity::Kind::kKernel) {
    out += base::cat(",\"grid\":[", a.grid[0], ",", a.grid[1], ",", a.grid[2], "],\"block\":[",
                     a.block[0], ",", a.block[1], ",", a.block[2], "]");
  } else {
    out += base::cat(",\"bytes\":", a.bytes);
  }
  out += "}},\n";
}

}  // namespace

const char* family_name(Family family) {
  constexpr const char* kNames[kFamilies] = {"products", "attention", "sampling", "rest"};
  return kNames[static_cast<size_t>(family)];
}

std::string short_name(std::string_view demangled) {
  std::string name(demangled);
  erase_all(name, "(anonymous namespace)::");
  if (name.starts_with("void ")) name.erase(0, 5);
  if (const size_t end = name.find_first_of("<("); end != std::string::npos && end > 0)
    name.resize(end);
  return name;
}

Family family_of(std::string_view name) {
  for (const Rule& rule : kRules)
    if (name.find(rule.part) != std::string_view::npos) return rule.family;
  return Family::kRest;
}

StepTimes step_times(const Trace& trace, const StepWindow& window) {
  ATTUNE_CHECK(window.steps > 0 && window.end_ns > window.begin_ns);
  const double steps = window.steps, span = static_cast<double>(window.end_ns - window.begin_ns);
  const double us = 1e-3 / steps;  // of ns in the window, per step
  StepTimes out{.steps = window.steps, .step_us = span * us};
  const std::vector<std::string> names = short_names(trace);
  std::unordered_map<std::string, KernelTime> kernels;
  int64_t seen = window.begin_ns;  // up to here every instant is counted
  int64_t idle = 0;
  for (const Activity& a : trace.activities) {  // in order of their begins
    const int64_t begin = std::max(a.begin_ns, window.begin_ns);
    const int64_t end = std::min(a.end_ns, window.end_ns);
    if (end <= begin) continue;
    KernelTime& kernel = kernels[names[a.name]];
    if (begin == a.begin_ns) kernel.launches += 1 / steps;
    kernel.busy_us += static_cast<double>(end - begin) * us;
    const int64_t gap = std::max<int64_t>(0, begin - seen);
    kernel.idle_us += static_cast<double>(gap) * us;
    idle += gap;
    kernel.us += static_cast<double>(std::max<int64_t>(0, end - std::max(begin, seen))) * us;
    seen = std::max(seen, end);
  }
  idle += window.end_ns - seen;
  out.idle = static_cast<double>(idle) / span;
  for (auto& [name, kernel] : kernels) {
    kernel.name = name;
    kernel.family = family_of(name);
    out.shares[static_cast<size_t>(kernel.family)] += kernel.us / out.step_us;
    out.kernels.push_back(std::move(kernel));
  }
  std::sort(out.kernels.begin(), out.kernels.end(),
            [](const KernelTime& a, const KernelTime& b) { return a.us > b.us; });
  return out;
}

std::string chrome_trace(const std::vector<NamedTrace>& traces) {
  std::string out = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  for (size_t i = 0; i < traces.size(); ++i) {
    const auto& [name, trace] = traces[i];
    const std::vector<std::string> names = short_names(trace);
    const int64_t zero = trace.activities.empty() ? 0 : trace.activities.front().begin_ns;
    std::vector<int64_t> lanes;  // when each is free again
    for (const Activity& a : trace.activities) {
      size_t lane = 0;
      while (lane < lanes.size() && lanes[lane] > a.begin_ns) ++lane;
      if (lane == lanes.size()) lanes.push_back(0);
      lanes[lane] = a.end_ns;
      append_event(out, names[a.name], a, i, lane, zero);
    }
    out += base::cat("{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":", i,
                     ",\"args\":{\"name\":", base::json_quote(name), "}}",
                     i + 1 < traces.size() ? ",\n" : "\n");
  }
  return out + "]}\n";
}

}  // namespace attune::bench
