// Names out of files, made fit for a message.
#pragma once

#include <string>
#include <string_view>

#include "formats/json.h"

namespace attune::formats {

// In double quotes, escaped, cut to 100 bytes.
inline std::string quote(std::string_view name) {
  constexpr size_t kMax = 100;
  std::string text = Json(name.substr(0, kMax)).dump();
  return name.size() > kMax ? text + "..." : text;
}

}  // namespace attune::formats
