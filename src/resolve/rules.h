// The rules as tables of small functions over a State. A group of rows lies in one file; resolve.cc
// runs the groups in order. Adding a rule is a row, adding a requirement on backends another
// (requirements.cc).
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "resolve/resolve.h"

namespace attune::resolve {

struct State;

struct Rule {
  const char* id;              // a row of docs/selection-rules.md
  bool (*when)(const State&);  // null: always
  void (*then)(State&, const char* id);
};

// In the order in which they run.
std::span<const Rule> build_rules();      // --without, --assume, names
std::span<const Rule> type_rules();       // dtype, KV dtype, layout, the set page size
std::span<const Rule> candidate_rules();  // S1, S4 to S8, S10, S11, S13, and S9 among them
std::span<const Rule> hicache_rules();    // H1 to H8; moves decode at most
std::span<const Rule> phase_rules();      // verify, draft extend, S2, S3
std::span<const Rule> hold_rules();       // H5
std::span<const Rule> tuning_rules();     // graphs, S12, F2 to F4
std::span<const Rule> mla_rules();        // M rows

// A backend that a flag names for a phase.
struct Named {
  std::string name;            // canonical; empty: none, or none of this name
  const char* flag = nullptr;  // null: no flag is set
  std::string typed;           // the flag's value, which may be an alias
};

// Why a backend cannot serve a phase at all, by the first row of requirements.cc that says so.
struct Objection {
  const char* rule = nullptr;  // null: it can
  std::string why;             // follows "it": "offers page sizes 64, not 16"
  std::string asked;           // flag and value that ask too much: "--page-size 16"; may be empty
  std::string mend;            // "use --page-size 64"; may be empty

  explicit operator bool() const { return rule != nullptr; }
};

struct State {
  explicit State(const Inputs& inputs) : in(inputs), backends(inputs.backends) {}

  const Inputs& in;
  Resolution out;
  std::vector<Descriptor> backends;  // of the build in question
  std::array<Named, 2> named;        // by kPrefill, kDecode
  std::string moved_decode;          // H2: heads the decode list

  bool gpu() const { return in.device.arch != attention::Arch::kCpu; }
  bool mla() const { return in.model.kind == attention::AttentionKind::kMla; }
  const Options& set() const { return in.settings; }
  const Named& named_for(attention::Phase phase) const { return named[static_cast<size_t>(phase)]; }
  // Prefill and decode are themselves; the others follow --speculative-attention-mode.
  attention::Phase followed(attention::Phase phase) const;
  std::vector<Candidate>& list(attention::Phase phase) {
    return out.candidates[static_cast<size_t>(phase)];
  }
  const Descriptor* find(std::string_view name) const;
  // Heads of the phase's list and of its measured orders, each once.
  std::vector<const Descriptor*> first_candidates(attention::Phase phase) const;

  template <typename... Args>
  void reason(const char* rule, const Args&... text) {
    out.reasons.push_back({rule, base::cat(text...)});
  }
  template <typename... Args>
  void warning(const char* rule, const Args&... text) {
    out.reasons.push_back({rule, base::cat(text...), true});
  }
  // Said once, however many phases find it.
  void conflict(const char* rule, std::vector<std::string> flags, std::string text,
                std::string mend);
};

// requirements.cc
Objection objection(const State& s, const attention::Capabilities& c, attention::Phase phase);
bool serves_page(const attention::Capabilities& c, int32_t page_size);

// Pages must divide kernels' tiles, and one another (prefix granularity, host pages): powers of
// two.
inline constexpr int32_t kLargestPage = 256;
constexpr bool is_page_size(int32_t size) {
  return size > 0 && size <= kLargestPage && (size & (size - 1)) == 0;
}

// candidates.cc: makes the phase's list and refusals anew.
void list_candidates(State& s, attention::Phase phase);

// measured.cc: the orders of the model's nearest shape; empty: none was measured.
std::vector<SizedOrder> measured_orders(const State& s, attention::Phase phase);
// The batch whose order is listed.
inline constexpr int32_t kListedSequences = 64, kListedTokens = 4096;

template <typename T>
bool has(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// "a, b, c", or "none".
template <typename T, typename Print>
std::string join(const std::vector<T>& list, Print print) {
  return list.empty() ? "none" : base::join(list, print);
}
inline std::string join(const std::vector<std::string>& list) {
  return join(list, [](const std::string& item) { return item; });
}

}  // namespace attune::resolve
