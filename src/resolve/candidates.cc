// Who serves each phase, in which order, and what page size they share.
#include "resolve/rules.h"

namespace attune::resolve {

using attention::Capabilities;
using attention::Phase;
using base::cat;

namespace {

constexpr Phase kOwnPhases[] = {Phase::kPrefill, Phase::kDecode};
constexpr Phase kFollowers[] = {Phase::kVerify, Phase::kDraftExtend};

struct Place {
  std::string name;
  std::string reason;
  bool by_row = false;  // of the preferred order: behind another it is a fallback
};

const PreferenceRow* preference(const State& s, Phase phase) {
  for (const PreferenceRow& row : s.in.preferences.orders)
    if (has(row.archs, s.in.device.arch) && row.kind == s.in.model.kind && has(row.phases, phase))
      return &row;
  return nullptr;
}

// Everyone who may stand in the phase's list, best first. A follower has its leader's order.
std::vector<Place> order_of(const State& s, Phase phase) {
  const Phase leader = s.followed(phase);
  const Named& named = s.named_for(leader);
  std::vector<Place> order;
  auto add = [&](const std::string& name, std::string reason, bool by_row = false) {
    for (const Place& place : order)
      if (place.name == name) return;
    order.push_back({name, std::move(reason), by_row});
  };
  if (!named.name.empty()) {
    add(named.name, cat("named by ", named.flag));
    if (s.set().no_attention_fallback) return order;
  }
  if (leader == Phase::kDecode && !s.moved_decode.empty())
    add(s.moved_decode, "H2: tolerates SM-side host copies");
  if (!named.flag) {
    const std::vector<SizedOrder> measured = measured_orders(s, leader);
    if (!measured.empty())
      for (const std::string& name : nearest(measured, kListedSequences, kListedTokens).backends)
        add(name, "S4: measured");
  }
  if (const PreferenceRow* row = preference(s, leader))
    for (const std::string& name : row->order) add(name, cat(row->rule, ": preferred"), true);
  return order;
}

// S4: the measured orders as far as they can serve; H2's choice heads each.
void list_sized(State& s, Phase phase) {
  auto& sized = s.out.sized[static_cast<size_t>(phase)];
  sized.clear();
  if (s.named_for(phase).flag) return;
  for (SizedOrder order : measured_orders(s, phase)) {
    if (phase == Phase::kDecode && !s.moved_decode.empty()) {
      std::erase(order.backends, s.moved_decode);
      order.backends.insert(order.backends.begin(), s.moved_decode);
    }
    std::erase_if(order.backends, [&](const std::string& name) {
      const Descriptor* d = s.find(name);
      return !d || objection(s, d->capabilities, phase);
    });
    if (!order.backends.empty()) sized.push_back(std::move(order));
  }
}

// Who can serve all phases that `flag` names for: those of the preferred order first.
std::vector<std::string> able(const State& s, std::string_view flag) {
  std::vector<Phase> phases;
  for (Phase phase : kOwnPhases)
    if (s.named_for(phase).flag && s.named_for(phase).flag == flag) phases.push_back(phase);
  std::vector<std::string> names;
  auto add = [&](const std::string& name) {
    const Descriptor* d = s.find(name);
    if (!d || has(names, name)) return;
    for (Phase phase : phases)
      if (objection(s, d->capabilities, phase)) return;
    names.push_back(name);
  };
  for (Phase phase : phases)
    if (const PreferenceRow* row = preference(s, phase))
      for (const std::string& name : row->order) add(name);
  for (const Descriptor& d : s.backends) add(d.capabilities.name);
  return names;
}

// S8, S10, S12, S13: a flag names what cannot serve its phase at all.
void refuse_named(State& s, const Named& named, const Objection& o) {
  std::vector<std::string> flags = {named.flag};
  std::string text = cat(named.flag, " ", named.typed);
  if (!o.asked.empty()) {
    flags.push_back(o.asked.substr(0, o.asked.find(' ')));
    text += cat(" with ", o.asked);
  }
  const std::vector<std::string> others = able(s, named.flag);
  std::string mend = o.mend;
  if (!others.empty())
    mend += cat(mend.empty() ? "" : "; or ", "use ", named.flag, " with one of: ", join(others));
  if (mend.empty()) mend = "the refused backends and their reasons tell what is in the way";
  s.conflict(o.rule, std::move(flags), cat(text, ": ", named.name, " ", o.why), std::move(mend));
}

void list_own_phases(State& s, const char*) {
  for (Phase phase : kOwnPhases) list_candidates(s, phase);
}

// The named backends have no page size together, or one of them none that a pool can have.
void refuse_pages(State& s, const char* id) {
  std::vector<std::string> flags, offers;
  for (Phase phase : kOwnPhases) {
    const Named& named = s.named_for(phase);
    const Descriptor* d = s.find(named.name);
    if (!d || has(flags, std::string(named.flag))) continue;
    flags.emplace_back(named.flag);
    offers.push_back(
        cat(named.name, " offers ", join(d->capabilities.page_sizes, [](int32_t p) { return p; })));
  }
  s.conflict(id, flags,
             cat("the named backends share no page size: ", offers[0],
                 offers.size() > 1 ? "; " + offers[1] : ", none of which a pool can have"),
             "name backends that share one, or one backend alone");
}

// S9: the size that most first candidates serve, all named ones among them.
void choose_page(State& s, const char* id) {
  const std::vector<int32_t> sizes = s.gpu()
                                         ? std::vector<int32_t>{64, 32, 16, 128, 8, 4, 2, 1, 256}
                                         : std::vector<int32_t>{16, 32, 64, 8, 128, 4, 2, 1, 256};
  struct First {
    const Capabilities& c;
    bool named;
  };
  std::vector<First> firsts;
  for (Phase phase : kOwnPhases)
    for (const Descriptor* d : s.first_candidates(phase))
      firsts.push_back({d->capabilities, d->capabilities.name == s.named_for(phase).name});
  s.out.page_size = sizes[0];
  int most = -1;
  for (int32_t size : sizes) {
    int serving = 0;
    bool all_named = true;
    for (const First& first : firsts) {
      const bool serves = serves_page(first.c, size);
      serving += serves;
      all_named &= serves || !first.named;
    }
    if (!all_named || serving <= most) continue;
    most = serving;
    s.out.page_size = size;
  }
  if (most < 0) return refuse_pages(s, id);
  s.reason(id, "page size ", s.out.page_size, ": ", most == std::ssize(firsts) ? "the" : "most",
           " first candidates share it, ", sizes[0], " is preferred");
  list_own_phases(s, id);  // without those that do not serve it
}

// S11: asked of the backend that verify follows, whether or not it serves verify at all.
void tree_masks(State& s, const char* id) {
  const Phase leader = s.followed(Phase::kVerify);
  const Named& named = s.named_for(leader);
  std::vector<std::string> with;
  for (const Descriptor& d : s.backends)
    if (d.capabilities.tree_mask && !objection(s, d.capabilities, Phase::kVerify))
      with.push_back(d.capabilities.name);
  s.conflict(id, {named.flag, "--speculative-eagle-topk"},
             cat("--speculative-eagle-topk ", s.set().speculative_eagle_topk, " with ", named.flag,
                 " ", named.name, ": ", named.name, " has no tree mask"),
             cat("use --speculative-eagle-topk 1, or one of those that have one: ", join(with)));
}

bool misses_tree_mask(const State& s) {
  if (s.set().speculative_eagle_topk <= 1) return false;
  const Descriptor* d = s.find(s.named_for(s.followed(Phase::kVerify)).name);
  return d && !d->capabilities.tree_mask;
}

bool fallback_flag_idle(const State& s) {
  return s.set().no_attention_fallback && !s.named_for(Phase::kPrefill).flag &&
         !s.named_for(Phase::kDecode).flag;
}

void no_effect(State& s, const char* id) {
  s.warning(id, "--no-attention-fallback has no effect: no flag names a backend");
}

void tell_orders(State& s, const char*) {
  for (Phase phase : kOwnPhases) {
    if (s.named_for(phase).flag) continue;
    if (!s.out.sized[static_cast<size_t>(phase)].empty()) {
      s.reason("S4", attention::phase_name(phase),
               ": nothing named, the order that this build measured for ", kListedSequences,
               " sequences of ", kListedTokens, " tokens");
    } else if (const PreferenceRow* row = preference(s, phase)) {
      s.reason(row->rule, attention::phase_name(phase), ": nothing named, the order for ",
               attention::kind_name(s.in.model.kind), " on ",
               attention::arch_name(s.in.device.arch), " is ", join(row->order));
    }
  }
}

// Of prefill and decode, those for which only an oracle is left that nobody asked for.
void tell_slow(State& s, const char* id) {
  for (Phase phase : kOwnPhases) {
    const std::vector<Candidate>& list = s.out.of(phase);
    if (list.empty() || s.named_for(phase).flag) continue;
    if (!s.find(list[0].backend)->capabilities.oracle) continue;
    s.warning(id, attention::phase_name(phase), ": only ", list[0].backend,
              " is left, which is exact and very slow; why the others are refused is listed");
  }
}

constexpr Rule kCandidateRules[] = {
    {"S8", fallback_flag_idle, no_effect},
    {"S8", nullptr, list_own_phases},
    {"S9", [](const State& s) { return s.set().page_size == 0; }, choose_page},
    {"S4", nullptr, tell_orders},
    {"S8", nullptr, tell_slow},
    {"S11", misses_tree_mask, tree_masks},
};

void list_followers(State& s, const char* id) {
  for (Phase phase : kFollowers) list_candidates(s, phase);
  s.reason(id, "verify and draft extend follow ", attention::phase_name(s.followed(Phase::kVerify)),
           ": --speculative-attention-mode ", s.set().speculative_attention_mode);
}

bool two_heads(const State& s) {
  const auto &prefill = s.out.of(Phase::kPrefill), &decode = s.out.of(Phase::kDecode);
  return !prefill.empty() && !decode.empty() && prefill[0].backend != decode[0].backend;
}

bool one_head(const State& s) {
  return !s.out.of(Phase::kPrefill).empty() && !s.out.of(Phase::kDecode).empty() && !two_heads(s);
}

void not_hybrid(State& s, const char* id) {
  s.out.hybrid = false;
  s.reason(id, s.out.of(Phase::kPrefill)[0].backend,
           " heads both phases: one plan and one workspace, no hybrid");
}

void hybrid(State& s, const char* id) {
  s.out.hybrid = true;
  s.reason(id, "prefill batches go to ", s.out.of(Phase::kPrefill)[0].backend,
           ", decode batches to ", s.out.of(Phase::kDecode)[0].backend);
}

constexpr Rule kPhaseRules[] = {
    {"S2", one_head, not_hybrid},
    {"S3", two_heads, hybrid},
    {"S3", nullptr, list_followers},
};

}  // namespace

void list_candidates(State& s, Phase phase) {
  auto& list = s.list(phase);
  list.clear();
  std::erase_if(s.out.refused, [&](const Refusal& r) { return r.phase == phase; });
  const Named& named = s.named_for(s.followed(phase));
  const bool own = s.followed(phase) == phase;
  const std::vector<Place> order = order_of(s, phase);
  for (const Place& place : order) {
    const Descriptor* d = s.find(place.name);
    const Objection o = d ? objection(s, d->capabilities, phase)
                          : Objection{"S8", "is not in this build's sources", "", ""};
    if (!o) {
      list.push_back({place.name, place.by_row && !list.empty() ? "fallback" : place.reason});
      continue;
    }
    s.out.refused.push_back({place.name, phase, o.why});
    if (own && place.name == named.name) refuse_named(s, named, o);
  }
  for (const Descriptor& d : s.backends) {
    const std::string& name = d.capabilities.name;
    if (std::any_of(order.begin(), order.end(), [&](const Place& p) { return p.name == name; }))
      continue;
    const Objection o = objection(s, d.capabilities, phase);
    const bool dropped = !named.name.empty() && s.set().no_attention_fallback;
    s.out.refused.push_back({name, phase,
                             o         ? o.why
                             : dropped ? "is left out by --no-attention-fallback"
                                       : "stands in no preferred order of this device; name it"});
  }
  if (!own) return;
  if (list.empty() && s.out.conflicts.empty())
    s.conflict("S8", {"--attention-backend"},
               cat("no backend serves ", attention::phase_name(phase), " as asked"),
               "the refused backends and their reasons tell what is in the way");
  list_sized(s, phase);
}

std::span<const Rule> candidate_rules() {
  return kCandidateRules;
}
std::span<const Rule> phase_rules() {
  return kPhaseRules;
}

}  // namespace attune::resolve
