// Which paths an MLA model's extend batches take, and the bounds by which the route chooses among
// them, sequence by sequence (M rows).
#include "resolve/rules.h"

namespace attune::resolve {

using attention::Arch;
using attention::Capabilities;
using attention::Path;
using attention::Phase;
using base::cat;

namespace {

// New tokens from which up-projecting a cached prefix beats absorbed attention over it: 145 to 170
// on an H200, for any prefix and head count (per prefix token the one costs new * heads * 2176
// FLOP, the other heads * 262144 once and new * heads * 640). On a CPU the rates of
// docs/performance.md (82 absorbed, 67 ragged, 92 GFLOP/s of products) put the bound at 168.
constexpr int32_t kAbsorbBelow = 160;

// Keys up-projected at once: heads * (192 + 128) elements each, in all.
int64_t default_capacity(Arch arch) {
  return arch == Arch::kCpu ? 4096 : 131072;
}

// The oracle counts for rows only where it heads the list: behind another it would serve the
// largest part of the work, since absorbing needs no rows.
bool any_takes(const State& s, Path path) {
  const std::vector<Candidate>& list = s.out.of(Phase::kPrefill);
  const auto takes = [&](const Candidate& c) {
    const Descriptor* d = s.find(c.backend);
    const bool counts = d && (!attention::reads_rows(path) || !d->capabilities.oracle ||
                              c.backend == list[0].backend);
    return counts && attention::takes_path(d->capabilities, path);
  };
  return std::any_of(list.begin(), list.end(), takes);
}

bool mla(const State& s) {
  return s.mla();
}
bool mla_deterministic(const State& s) {
  return s.mla() && s.set().enable_deterministic_inference;
}

// What the bounds were set for does not happen.
const char* bounds_note(const State& s) {
  return s.set().mla_absorb_below >= 0 || s.set().chunked_prefix_capacity > 0
             ? "; --mla-absorb-below and --chunked-prefix-capacity have no effect"
             : "";
}

void constants(State& s, const char*) {
  const Options& o = s.set();
  attention::MlaPolicy m;
  m.chunked_prefix = !o.disable_chunked_prefix_cache;
  m.absorb_below = o.mla_absorb_below >= 0 ? o.mla_absorb_below : kAbsorbBelow;
  m.capacity = o.chunked_prefix_capacity > 0 ? o.chunked_prefix_capacity
                                             : default_capacity(s.in.device.arch);
  s.out.mla = {{}, m};
}

bool rows_taken(const State& s) {
  return s.out.of(Phase::kPrefill).empty() || any_takes(s, Path::kRagged);
}
bool several_paths(const State& s) {
  return s.mla() && !s.set().enable_deterministic_inference && rows_taken(s);
}
bool nobody_takes_rows(const State& s) {
  return s.mla() && !s.set().enable_deterministic_inference && !rows_taken(s);
}
bool bounds_hold(const State& s) {
  return several_paths(s) && s.out.mla->policy.chunked_prefix;
}

void ragged_without_prefix(State& s, const char* id) {
  s.reason(id, "a prompt without a cached prefix is ragged");
}

void absorbed_below(State& s, const char* id) {
  s.reason(id, "a prompt with a cached prefix and fewer than ", s.out.mla->policy.absorb_below,
           " new tokens is absorbed", s.set().mla_absorb_below >= 0 ? ": --mla-absorb-below" : "");
}

void chunked_above(State& s, const char* id) {
  s.reason(id, "up to ", s.out.mla->policy.capacity,
           " keys are up-projected at once, more in chunks",
           s.set().chunked_prefix_capacity > 0 ? ": --chunked-prefix-capacity" : "");
}

bool nobody_merges(const State& s) {
  return several_paths(s) && s.out.mla->policy.chunked_prefix &&
         !s.out.of(Phase::kPrefill).empty() && !any_takes(s, Path::kChunked);
}

void chunk_nothing(State& s, const char* id) {
  s.out.mla->policy.chunked_prefix = false;
  s.reason(id, "no prefill candidate takes chunks of a prefix and gives the LSE by which they are ",
           "merged: a prompt with a cached prefix is absorbed", bounds_note(s));
}

void all_paths(State& s, const char*) {
  auto& paths = s.out.mla->paths;
  auto add = [&](Path path) {
    if (any_takes(s, path)) paths.push_back(path);
  };
  add(Path::kRagged);
  if (s.out.mla->policy.chunked_prefix) {
    add(Path::kOneShot);
    add(Path::kChunked);
  }
  add(Path::kAbsorbed);
}

void no_chunks(State& s, const char* id) {
  s.reason(id, "--disable-chunked-prefix-cache: a prompt with a cached prefix is absorbed",
           bounds_note(s));
}

void one_path(State& s, const char* id) {
  s.out.mla->policy.one_path = true;
  s.out.mla->paths.clear();
  if (any_takes(s, Path::kAbsorbed)) s.out.mla->paths = {Path::kAbsorbed};
  s.reason(id, "one path, absorbed, serves every prompt: where a prefix ends changes no bit",
           bounds_note(s));
}

void absorb_all(State& s, const char* id) {
  s.out.mla->policy.one_path = true;
  s.out.mla->policy.chunked_prefix = false;
  s.reason(id, "no prefill candidate takes up-projected rows: every prompt is absorbed",
           bounds_note(s));
}

// M5: the first cannot absorb, who does it instead.
void absorbed_elsewhere(State& s, const char* id) {
  const auto& list = s.out.of(Phase::kPrefill);
  for (const Candidate& c : list)
    if (attention::takes_path(s.find(c.backend)->capabilities, Path::kAbsorbed)) {
      s.reason(id, list[0].backend, " has no absorbed extend: ", c.backend,
               " serves those prompts, by the fallback of the list");
      return;
    }
}

bool head_cannot_absorb(const State& s) {
  if (!s.mla() || s.out.of(Phase::kPrefill).empty() || !any_takes(s, Path::kAbsorbed)) return false;
  const Descriptor* d = s.find(s.out.of(Phase::kPrefill)[0].backend);
  return d && !attention::takes_path(d->capabilities, Path::kAbsorbed);
}

bool nobody_absorbs(const State& s) {
  return s.mla() && !s.out.of(Phase::kPrefill).empty() && !any_takes(s, Path::kAbsorbed);
}
bool nobody_absorbs_chunks_off(const State& s) {
  return nobody_absorbs(s) && !s.out.mla->policy.chunked_prefix;
}
bool nobody_absorbs_chunks_on(const State& s) {
  return nobody_absorbs(s) && s.out.mla->policy.chunked_prefix;
}

void refuse_no_chunks(State& s, const char* id) {
  const Named& named = s.named_for(Phase::kPrefill);
  const bool off = s.set().disable_chunked_prefix_cache, alone = s.set().no_attention_fallback;
  std::vector<std::string> flags;
  if (off) flags.emplace_back("--disable-chunked-prefix-cache");
  if (named.flag) flags.emplace_back(named.flag);
  if (alone) flags.emplace_back("--no-attention-fallback");
  std::vector<std::string> ways;
  if (alone) ways.emplace_back("--no-attention-fallback");
  if (off && any_takes(s, Path::kChunked)) ways.emplace_back("--disable-chunked-prefix-cache");
  s.conflict(id, flags,
             cat(off ? "--disable-chunked-prefix-cache" : "no prefill candidate merges chunks",
                 ": a prompt with a cached prefix must then be absorbed, and no prefill candidate "
                 "has an absorbed extend"),
             ways.empty() ? "name a prefill backend that has one: --prefill-attention-backend"
                          : "drop " + ways[0] + (ways.size() > 1 ? " or " + ways[1] : ""));
}

void never_absorb(State& s, const char* id) {
  if (s.set().mla_absorb_below > 0) {
    s.conflict(id, {"--mla-absorb-below"},
               cat("--mla-absorb-below ", s.set().mla_absorb_below,
                   ": no prefill candidate has an absorbed extend"),
               "use --mla-absorb-below 0");
    return;
  }
  s.out.mla->policy.absorb_below = 0;
  s.reason(id, "nothing is absorbed: no prefill candidate has an absorbed extend");
}

bool has_mla_flag(const State& s) {
  const Options& o = s.set();
  return !s.mla() && (o.disable_chunked_prefix_cache || o.chunked_prefix_capacity > 0 ||
                      o.mla_absorb_below >= 0);
}

void no_effect(State& s, const char* id) {
  s.warning(id,
            "--disable-chunked-prefix-cache, --chunked-prefix-capacity and --mla-absorb-below "
            "have no effect: the model has no latent attention");
}

constexpr Rule kRules[] = {
    {"mla", has_mla_flag, no_effect},
    {"M4", mla, constants},
    {"M2", nobody_merges, chunk_nothing},
    {"M4", mla, all_paths},
    {"M1", several_paths, ragged_without_prefix},
    {"M4", [](const State& s) { return bounds_hold(s) && any_takes(s, Path::kAbsorbed); },
     absorbed_below},
    {"M2", bounds_hold, chunked_above},
    {"M4", [](const State& s) { return several_paths(s) && s.set().disable_chunked_prefix_cache; },
     no_chunks},
    {"M1", nobody_takes_rows, absorb_all},
    {"S12", mla_deterministic, one_path},
    {"M5", head_cannot_absorb, absorbed_elsewhere},
    {"M5", nobody_absorbs_chunks_off, refuse_no_chunks},
    {"M4", nobody_absorbs_chunks_on, never_absorb},
};

}  // namespace

std::span<const Rule> mla_rules() {
  return kRules;
}

}  // namespace attune::resolve
