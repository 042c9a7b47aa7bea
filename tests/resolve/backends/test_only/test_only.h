// What a test tells the backend of this folder.
#pragma once

#include <string>

namespace attune::attention {

// The library that this machine lacks for it, as it says; empty: none.
std::string& test_only_lacks();

}  // namespace attune::attention
