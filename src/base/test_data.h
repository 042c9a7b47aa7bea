// Where tests find their data: the checkout's tests/golden, or a copy of it elsewhere.
#pragma once

#include <cstdlib>
#include <string>

namespace attune::base {

// `path` below tests/golden.
inline std::string test_data(const std::string& path) {
  const char* copy = std::getenv("ATTUNE_TEST_DATA");
  return (copy ? std::string(copy) : ATTUNE_SOURCE_DIR "/tests/golden") + "/" + path;
}

}  // namespace attune::base
