// The one place where backends have names: the preferred orders (docs/selection-rules.md, S7).
#include "resolve/resolve.h"

namespace attune::resolve {

using attention::Arch;
using attention::AttentionKind;

const std::vector<std::string>& preferred_order(Arch arch, AttentionKind) {
  static const std::vector<std::string> cpu = {"cpu", "reference"};
  static const std::vector<std::string> other = {
      "reference"};  // GPU orders come with their backends
  return arch == Arch::kCpu ? cpu : other;
}

}  // namespace attune::resolve
