// Resolutions of flags as a user writes them, over the real descriptors.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/settings.h"
#include "resolve/resolve.h"

namespace attune::resolve {

using attention::kAllPhases;
using attention::Phase;

using Names = std::vector<std::string>;

inline std::vector<Descriptor> all_descriptors() {
  std::vector<Descriptor> all;
  for (const attention::BackendEntry& b : attention::backends())
    all.push_back({b.capabilities, b.unavailable});
  return all;
}

// "--page-size 16 --assume fa3:pdl=off" on a simulated device.
inline Inputs inputs(const std::string& device, const std::string& model,
                     const std::string& flags) {
  Inputs in{.build = {}, .settings = {}, .backends = all_descriptors()};
  in.device = *simulated_device(device);
  in.model = *model_preset(model);
  base::Settings settings;
  std::istringstream words(flags);
  std::vector<std::string> args{std::istream_iterator<std::string>(words), {}};
  auto parsed = settings.apply_args(args, {{"without", &in.build.without, "g", "N", "h"},
                                           {"assume", &in.build.assume, "g", "N", "h"}});
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  in.settings = settings.options();
  return in;
}

// As once flashmla has its kernel.
inline Inputs with_flashmla(Inputs in) {
  for (Descriptor& d : in.backends)
    if (d.capabilities.name == "flashmla") d.unavailable.clear();
  return in;
}

inline Resolution explain(const std::string& device, const std::string& model,
                          const std::string& flags = "") {
  return resolve(inputs(device, model, flags));
}

// The same as a machine of this build: everything built, memory of `pool` and `pinnable` bytes.
inline Inputs real_inputs(const std::string& device, const std::string& model,
                          const std::string& flags, int64_t pool = int64_t{100} << 30,
                          int64_t pinnable = int64_t{1000} << 30) {
  Inputs in = inputs(device, model, flags);
  in.device.simulated = false;
  in.device.kv_budget = pool;
  in.host = {pinnable, pinnable};
  for (Descriptor& d : in.backends) d.unavailable.clear();
  return in;
}

inline Names names(const Resolution& r, Phase phase) {
  return r.order()[static_cast<size_t>(phase)].backends;
}
// The route's order for a batch.
inline Names order_for(const Resolution& r, Phase phase, int32_t sequences, int32_t tokens) {
  return r.order()[static_cast<size_t>(phase)].for_batch(sequences, tokens);
}
inline std::string head(const Resolution& r, Phase phase) {
  return r.of(phase).empty() ? "" : r.of(phase)[0].backend;
}

inline bool has_rule(const Resolution& r, const std::string& rule) {
  return std::any_of(r.reasons.begin(), r.reasons.end(),
                     [&](const Reason& reason) { return reason.rule == rule; });
}
inline std::string why_refused(const Resolution& r, const std::string& backend, Phase phase) {
  for (const Refusal& f : r.refused)
    if (f.backend == backend && f.phase == phase) return f.why;
  return "";
}
// Text of the one conflict of this rule; "" if there is none or another beside it.
inline std::string only_conflict(const Resolution& r, const std::string& rule) {
  if (r.conflicts.size() != 1 || r.conflicts[0].rule != rule) return "";
  return r.conflicts[0].text + " | " + r.conflicts[0].mend;
}

}  // namespace attune::resolve
