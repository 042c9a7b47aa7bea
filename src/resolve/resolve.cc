#include "resolve/resolve.h"

#include "resolve/rules.h"

namespace attune::resolve {

using attention::Phase;

Phase State::followed(Phase phase) const {
  if (phase == Phase::kPrefill || phase == Phase::kDecode) return phase;
  return set().speculative_attention_mode == "decode" ? Phase::kDecode : Phase::kPrefill;
}

const Descriptor* State::find(std::string_view name) const {
  for (const Descriptor& d : backends)
    if (d.capabilities.name == name) return &d;
  return nullptr;
}

std::vector<const Descriptor*> State::first_candidates(Phase phase) const {
  std::vector<const Descriptor*> firsts;
  auto add = [&](const std::string& name) {
    const Descriptor* d = find(name);
    if (d && !has(firsts, d)) firsts.push_back(d);
  };
  if (!out.of(phase).empty()) add(out.of(phase)[0].backend);
  for (const SizedOrder& order : out.sized[static_cast<size_t>(phase)])
    if (!order.backends.empty()) add(order.backends[0]);
  return firsts;
}

void State::conflict(const char* rule, std::vector<std::string> flags, std::string text,
                     std::string mend) {
  for (const Conflict& c : out.conflicts)
    if (c.flags == flags && c.text == text) return;
  out.conflicts.push_back({rule, std::move(flags), std::move(text), std::move(mend)});
}

Resolution resolve(const Inputs& inputs) {
  State s(inputs);
  s.out.device = inputs.device.name;
  for (std::span<const Rule> group :
       {build_rules(), type_rules(), candidate_rules(), hicache_rules(), phase_rules(),
        hold_rules(), tuning_rules(), mla_rules()})
    for (const Rule& rule : group)
      if (!rule.when || rule.when(s)) rule.then(s, rule.id);
  return std::move(s.out);
}

attention::BackendOrder Resolution::order() const {
  attention::BackendOrder order;
  for (size_t p = 0; p < order.size(); ++p) {
    for (const Candidate& c : candidates[p]) order[p].backends.push_back(c.backend);
    order[p].sized = sized[p];
  }
  return order;
}

}  // namespace attune::resolve
