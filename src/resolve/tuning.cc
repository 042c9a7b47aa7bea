// Graphs, splits, head packing, dependent launch.
#include "resolve/rules.h"

namespace attune::resolve {

using attention::Arch;
using attention::Capabilities;
using attention::Phase;
using attention::Toggle;
using base::cat;

namespace {

// Beyond these a decode step is long enough to hide its launches; a smaller GPU holds fewer
// sequences.
constexpr int32_t kGraphBatch = 256, kSmallGraphBatch = 32;
constexpr int64_t kSmallMemory = int64_t{60} << 30;

void graphs_on(State& s, const char* id) {
  const bool small = s.in.device.memory > 0 && s.in.device.memory < kSmallMemory;
  const int32_t set = s.set().cuda_graph_max_bs;
  s.out.graphs = {true, set > 0 ? set : small ? kSmallGraphBatch : kGraphBatch};
  s.reason(id, "decode steps of up to ", s.out.graphs.max_bs, " sequences replay CUDA graphs",
           set > 0 ? ": --cuda-graph-max-bs" : "");
}

void graphs_off(State& s, const char* id) {
  s.out.graphs = {};
  s.reason(id, s.gpu() ? "no CUDA graphs: --disable-cuda-graph" : "no graphs: this is a CPU",
           s.set().cuda_graph_max_bs > 0 ? "; --cuda-graph-max-bs has no effect" : "");
}

void splits_break_determinism(State& s, const char* id) {
  s.conflict(id, {"--num-splits", "--enable-deterministic-inference"},
             cat("--num-splits ", s.set().num_splits,
                 " with --enable-deterministic-inference: so many parts cut a sequence at places "
                 "that move with its length"),
             "use --num-splits 0 or 1");
}

// The first candidates of prefill and decode that follow a wish, or that do not.
std::vector<std::string> first_by(const State& s, bool Capabilities::*wish, bool follows) {
  std::vector<std::string> names;
  for (Phase phase : {Phase::kPrefill, Phase::kDecode})
    for (const Descriptor* d : s.first_candidates(phase))
      if (d->capabilities.*wish == follows && !has(names, d->capabilities.name))
        names.push_back(d->capabilities.name);
  return names;
}

// A wish that no first candidate follows would be taken and ignored; one that some follow is told.
void check_wish(State& s, const char* id, const char* flag, const std::string& value,
                bool Capabilities::*wish) {
  const std::vector<std::string> takers = first_by(s, wish, true),
                                 others = first_by(s, wish, false);
  if (takers.empty() && others.empty()) return;  // nobody is left, which S8 tells
  if (takers.empty()) {
    s.conflict(id, {flag}, cat(flag, " ", value, ": not taken by ", join(others)),
               cat("leave ", flag, " unset"));
  } else {
    s.reason(id, flag, " ", value, ": followed by ", join(takers),
             others.empty() ? "" : cat("; not taken by ", join(others)));
  }
}

void splits(State& s, const char* id) {
  s.out.tuning.num_splits = s.set().num_splits;
  if (s.set().enable_deterministic_inference) {
    s.reason(id, "parts of a sequence: cut at places that do not move with its length");
  } else if (s.set().num_splits > 0) {
    check_wish(s, id, "--num-splits", cat(s.set().num_splits), &Capabilities::num_splits);
  } else {
    s.reason(id, "parts of a sequence: by its length, as it is at each step");
  }
}

void packing(State& s, const char* id) {
  s.out.tuning.pack_gqa = attention::parse_toggle(s.set().pack_gqa);
  const ModelTraits& m = s.in.model;
  if (s.set().pack_gqa != "auto") {
    check_wish(s, id, "--pack-gqa", s.set().pack_gqa, &Capabilities::pack_gqa);
  } else {
    s.reason(id, "packing of ", m.kv_heads > 0 ? m.q_heads / m.kv_heads : 0,
             " query heads per KV head: where it fills a tile");
  }
}

// Of all kernels of a step: that a backend does not take it is no reason to do without it between
// the others.
void dependent_launch(State& s, const char* id) {
  const bool hopper = s.in.device.arch == Arch::kSm90 || s.in.device.arch == Arch::kSm100;
  const std::vector<std::string> others = first_by(s, &Capabilities::pdl, false);
  Toggle& pdl = s.out.tuning.pdl;
  pdl = attention::parse_toggle(s.set().enable_pdl);
  if (pdl == Toggle::kOn && !hopper) {
    s.conflict(id, {"--enable-pdl"}, "--enable-pdl on: dependent launch needs sm90 or later",
               "use --enable-pdl auto or off");
  } else if (pdl == Toggle::kOff) {
    s.reason(id, "no dependent launch: --enable-pdl off");
  } else if (!hopper) {
    pdl = Toggle::kOff;
    s.reason(id, "no dependent launch: it needs sm90 or later");
  } else {
    pdl = Toggle::kOn;
    s.reason(id, "dependent launch of a step's kernels",
             others.empty() ? "" : cat("; not taken by ", join(others)));
  }
}

constexpr Rule kRules[] = {
    {"S13", [](const State& s) { return s.gpu() && !s.set().disable_cuda_graph; }, graphs_on},
    {"S13", [](const State& s) { return !s.gpu() || s.set().disable_cuda_graph; }, graphs_off},
    {"S12",
     [](const State& s) {
       return s.set().enable_deterministic_inference && s.set().num_splits > 1;
     },
     splits_break_determinism},
    {"F2", nullptr, packing},
    {"F3", nullptr, splits},
    {"F4", nullptr, dependent_launch},
};

}  // namespace

std::span<const Rule> tuning_rules() {
  return kRules;
}

}  // namespace attune::resolve
