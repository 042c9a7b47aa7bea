#include "model/family.h"

#include <algorithm>

namespace attune::model {
namespace {

std::vector<Family>& registry() {
  static std::vector<Family> all;
  return all;
}

}  // namespace

RegisterFamily::RegisterFamily(const Family& family) {
  std::vector<Family>& all = registry();
  all.insert(std::upper_bound(
                 all.begin(), all.end(), family,
                 [](const Family& a, const Family& b) { return a.traits.name < b.traits.name; }),
             family);
}

std::span<const Family> families() {
  return registry();
}

std::vector<formats::FamilyTraits> family_traits() {
  std::vector<formats::FamilyTraits> traits;
  for (const Family& f : families()) traits.push_back(f.traits);
  return traits;
}

}  // namespace attune::model
