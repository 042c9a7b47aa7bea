#include "cli/bench.h"

#include <charconv>

#include "base/log.h"

namespace attune::cli {

Result<std::vector<int32_t>> parse_counts(const char* flag, const std::vector<std::string>& texts) {
  std::vector<int32_t> counts;
  for (const std::string& text : texts) {
    int32_t count = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, count);
    if (error != std::errc() || stop != end || count < 1)
      return invalid_argument(base::cat(flag, ": '", text, "' is not a whole number 1 or more"));
    counts.push_back(count);
  }
  return counts;
}

}  // namespace attune::cli
