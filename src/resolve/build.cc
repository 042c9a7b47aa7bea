// Which build is spoken of: names as users know them, backends that it lacks, what is assumed.
#include "base/flags.h"
#include "resolve/rules.h"

namespace attune::resolve {

using attention::Capabilities;
using attention::Path;
using base::cat;

namespace {

// What --assume may override.
struct Switch {
  const char* name;
  void (*set)(Capabilities& c, bool on);
};

template <bool Capabilities::*member>
void set_member(Capabilities& c, bool on) {
  c.*member = on;
}

void set_absorbed_extend(Capabilities& c, bool on) {
  std::erase(c.extend_paths, Path::kAbsorbed);
  if (on) c.extend_paths.push_back(Path::kAbsorbed);
}

constexpr Switch kSwitches[] = {
    {"tolerates-host-copies", set_member<&Capabilities::tolerates_host_copies>},
    {"graph-safe", set_member<&Capabilities::graph_safe>},
    {"batch-invariant", set_member<&Capabilities::batch_invariant>},
    {"tree-mask", set_member<&Capabilities::tree_mask>},
    {"window", set_member<&Capabilities::window>},
    {"soft-cap", set_member<&Capabilities::soft_cap>},
    {"sinks", set_member<&Capabilities::sinks>},
    {"lse-out", set_member<&Capabilities::lse_out>},
    {"num-splits", set_member<&Capabilities::num_splits>},
    {"pack-gqa", set_member<&Capabilities::pack_gqa>},
    {"pdl", set_member<&Capabilities::pdl>},
    {"absorbed-extend", set_absorbed_extend},
};

std::vector<std::string> switch_names() {
  std::vector<std::string> names;
  for (const Switch& s : kSwitches) names.emplace_back(s.name);
  return names;
}

std::vector<std::string> backend_names(const State& s) {
  std::vector<std::string> names;
  for (const Descriptor& d : s.backends) names.push_back(d.capabilities.name);
  return names;
}

// Those that this model could have here, however built.
std::vector<std::string> fitting_names(const State& s) {
  std::vector<std::string> names;
  for (const Descriptor& d : s.backends)
    if (has(d.capabilities.archs, s.in.device.arch) && has(d.capabilities.kinds, s.in.model.kind))
      names.push_back(d.capabilities.name);
  return names;
}

// The backend that a user means by `name`; a conflict and null if there is none.
Descriptor* meant(State& s, std::string name, const std::string& flag, const std::string& spelled,
                  const std::vector<std::string>& choices) {
  for (const AliasRow& alias : s.in.preferences.aliases)
    if (alias.kind == s.in.model.kind && alias.name == name) name = alias.meant;
  for (Descriptor& d : s.backends)
    if (d.capabilities.name == name) return &d;
  s.conflict("S8", {flag},
             cat(spelled, ": there is no backend '", name, "'",
                 base::did_you_mean(name, backend_names(s))),
             "name one of: " + join(choices));
  return nullptr;
}

void take_as_built(State& s, const char*) {
  for (Descriptor& d : s.backends) {
    if (d.unavailable != attention::kNoKernelYet) d.unavailable.clear();
    d.capabilities.tolerates_host_copies = true;
  }
}

void leave_out(State& s, const char*) {
  for (const std::string& name : s.in.build.without)
    if (Descriptor* d = meant(s, name, "--without", "--without " + name, backend_names(s)))
      d->unavailable = "built without " + name;
}

void assume(State& s, const char*) {
  const std::string flag = "--assume";
  for (const std::string& text : s.in.build.assume) {
    const std::string spelled = cat(flag, " ", text);
    const size_t colon = text.find(':'), equals = text.rfind('=');
    const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
    if (colon == std::string::npos || equals == std::string::npos || equals < colon ||
        (value != "on" && value != "off")) {
      s.conflict("assume", {flag}, cat(spelled, " is not NAME:capability=on|off"),
                 "capabilities are: " + join(switch_names()));
      continue;
    }
    std::string wanted = text.substr(colon + 1, equals - colon - 1);
    std::replace(wanted.begin(), wanted.end(), '_', '-');
    const Switch* found = nullptr;
    for (const Switch& each : kSwitches)
      if (wanted == each.name) found = &each;
    if (!found)
      s.conflict("assume", {flag},
                 cat(spelled, ": there is no capability '", wanted, "'",
                     base::did_you_mean(wanted, switch_names())),
                 "choose from: " + join(switch_names()));
    Descriptor* d = meant(s, text.substr(0, colon), flag, spelled, backend_names(s));
    if (value == "on" && !s.in.device.simulated)
      s.conflict("assume", {flag},
                 cat(spelled,
                     ": what a build has not shown cannot be claimed on a device that is "
                     "there"),
                 "use off, or simulate a device: attune explain --device " +
                     join(simulated_device_names()));
    else if (found && d)
      found->set(d->capabilities, value == "on");
  }
}

// S1, and what an alias makes of it.
void names(State& s, const char* id) {
  using attention::Phase;
  const Options& o = s.set();
  for (Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const bool decode = phase == Phase::kDecode;
    const std::string& own = decode ? o.decode_attention_backend : o.prefill_attention_backend;
    const std::string& name = own.empty() ? o.attention_backend : own;
    if (name.empty()) continue;
    Named& named = s.named[static_cast<size_t>(phase)];
    named.flag = own.empty() ? "--attention-backend"
                 : decode    ? "--decode-attention-backend"
                             : "--prefill-attention-backend";
    const Descriptor* d = meant(s, name, named.flag, cat(named.flag, " ", name), fitting_names(s));
    if (!d) continue;
    named.name = d->capabilities.name;
    named.typed = name;
    if (named.name != name)
      s.reason("alias", named.flag, " ", name, ": for an ", attention::kind_name(s.in.model.kind),
               " model this is ", named.name);
    s.reason(
        id, attention::phase_name(phase), ": ", named.name, ", named by ", named.flag,
        own.empty() || o.attention_backend.empty() ? "" : ", which wins over --attention-backend");
  }
}

constexpr Rule kRules[] = {
    {"S8", [](const State& s) { return s.in.device.simulated; }, take_as_built},
    {"S8", [](const State& s) { return !s.in.build.without.empty(); }, leave_out},
    {"assume", [](const State& s) { return !s.in.build.assume.empty(); }, assume},
    {"S1", nullptr, names},
};

}  // namespace

std::span<const Rule> build_rules() {
  return kRules;
}

}  // namespace attune::resolve
