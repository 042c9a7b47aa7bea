// JSON strings for the few places that write JSON without a document (src/formats/json.h has
// those).
#pragma once

#include <string>
#include <string_view>

namespace attune::base {

// `text` as a JSON string with its quotes; bytes that are no valid UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace attune::base
