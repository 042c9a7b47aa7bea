// Any bytes as JSON: refused, or written and read back equal. Whatever is an object is tried as
// config.json too.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "formats/json.h"
#include "formats/test_families.h"

using attune::formats::Json;
using attune::formats::parse_json;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)Json(text).dump();  // any bytes as a string
  const auto json = parse_json(text);
  if (!json.ok()) {
    if (json.status().message().find("at byte ") == std::string::npos) std::abort();
    return 0;
  }
  for (const std::string& written : {json->dump(), json->dump_pretty()}) {
    const auto again = parse_json(written);
    if (!again.ok() || !(*again == *json)) std::abort();
  }
  if (const auto config = model_config_from_hf(*json, &*json); config.ok())
    (void)inverse_frequencies(config->rope);
  return 0;
}
