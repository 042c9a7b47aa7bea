#include <algorithm>

#include "attention/registry.h"
#include "suite.h"

namespace attune::attention::test {
namespace {

std::vector<Target> at_levels(const std::vector<std::string>& levels) {
  std::vector<Target> all;
  for (const BackendEntry& e : backends()) {
    const auto& archs = e.capabilities.archs;
    if (!e.unavailable.empty() || std::find(archs.begin(), archs.end(), Arch::kCpu) == archs.end())
      continue;
    for (const std::string& isa : levels) all.push_back({e.capabilities.name, isa});
  }
  return all;
}

}  // namespace

std::vector<Target> targets() {
  return at_levels(isa_levels());
}

std::vector<Target> best_targets() {
  return at_levels({"auto"});
}

}  // namespace attune::attention::test
