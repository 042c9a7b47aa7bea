// The data that the rules read: who is preferred where. The one place where backends have names is
// preferences.cc, which fills it.
#pragma once

#include <string>
#include <vector>

#include "attention/capabilities.h"
#include "tensor/dtype.h"

namespace attune::resolve {

// Preferred order, best first, where nothing is named. Verify and draft extend take that of the
// phase they follow.
struct PreferenceRow {
  const char* rule;  // "S5"
  std::vector<attention::Arch> archs;
  attention::AttentionKind kind;
  std::vector<attention::Phase> phases;
  std::vector<std::string> order;
};

// Where a decode backend is sought that tolerates SM-side host copies (H2).
struct SafeDecodeRow {
  std::vector<attention::Arch> archs;
  attention::AttentionKind kind;
  std::vector<std::string> order;
};

// For models of this kind `name` means `meant`.
struct AliasRow {
  attention::AttentionKind kind;
  std::string name, meant;
};

// An order that a benchmark of this build on this device found for one shape (S4).
struct MeasuredCell {
  attention::Arch arch;
  attention::AttentionKind kind;
  attention::Phase phase;  // prefill or decode
  int32_t q_heads, kv_heads, head_dim;
  tensor::DType kv_dtype;
  int32_t page_size;
  int32_t sequences, tokens;  // sequences of the batch, tokens of each
  std::vector<std::string> order;
};

struct Preferences {
  std::vector<PreferenceRow> orders;
  std::vector<SafeDecodeRow> safe_decode;
  std::vector<AliasRow> aliases;
  std::vector<MeasuredCell> measured;
};

const Preferences& default_preferences();
// What benchmarks of this build found (tools/measured_table.py).
std::vector<MeasuredCell> measured_table();

}  // namespace attune::resolve
