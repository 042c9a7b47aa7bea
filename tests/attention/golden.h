// Reading the numbers that tools/golden_attention.py wrote.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attune/status.h"
#include "formats/json.h"

namespace attune::attention::test {

using formats::Json;

// values() of the script: multiples of 1/1024 in [-2, 2), by a hash of (salt, flat index).
std::vector<float> golden_values(uint32_t salt, int64_t count);
// The array of cases of a file under tests/golden.
Result<Json> golden_cases(const std::string& name);
int32_t number(const Json& object, const char* key);

}  // namespace attune::attention::test
