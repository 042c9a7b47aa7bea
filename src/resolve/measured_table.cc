// Made by tools/measured_table.py from bench/attention-*.jsonl: do not edit.
#include "resolve/preferences.h"

namespace attune::resolve {

using attention::Arch;
using attention::AttentionKind;
using attention::Phase;
using tensor::DType;

// clang-format off
std::vector<MeasuredCell> measured_table() {
  return {
  };
}
// clang-format on

}  // namespace attune::resolve
