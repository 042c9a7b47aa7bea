#include "golden.h"

#include <fstream>
#include <sstream>

#include "base/test_data.h"

namespace attune::attention::test {

std::vector<float> golden_values(uint32_t salt, int64_t count) {
  std::vector<float> v(count);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x = uint32_t(i) * 2654435761u + salt * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    v[i] = float(int(x % 4096) - 2048) / 1024.0f;
  }
  return v;
}

Result<Json> golden_cases(const std::string& name) {
  std::ifstream in(base::test_data(name));
  std::ostringstream text;
  text << in.rdbuf();
  return formats::parse_json(text.str());
}

int32_t number(const Json& object, const char* key) {
  return static_cast<int32_t>(object.find(key)->as_int());
}

}  // namespace attune::attention::test
