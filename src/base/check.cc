#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace attune::base {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "attune: check failed: %s at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace attune::base
