#include "model/family.h"

namespace attune::model {

std::vector<formats::FamilyTraits> family_traits() {
  std::vector<formats::FamilyTraits> traits;
  for (const Family* f : families()) traits.push_back(f->traits);
  return traits;
}

}  // namespace attune::model
