#include <algorithm>

#include "attention/registry.h"
#include "suite.h"

namespace attune::attention::test {

std::vector<Target> targets() {
  std::vector<Target> all;
  for (const BackendEntry& e : backends()) {
    const auto& archs = e.capabilities.archs;
    const bool cuda =
        std::any_of(archs.begin(), archs.end(), [](Arch a) { return a != Arch::kCpu; });
    if (e.unavailable.empty() && cuda) all.push_back({e.capabilities.name, kCuda});
  }
  return all;
}

std::vector<Target> best_targets() {
  return targets();
}

}  // namespace attune::attention::test
