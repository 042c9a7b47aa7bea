// Whole text files that a user names: configurations, templates, prompts.
#pragma once

#include <cstddef>
#include <string>

#include "attune/status.h"

namespace attune::formats {

// All bytes of `path`; it may be a pipe (<(command) in a shell), which is waited for. Errors name
// the path: not_found; io_error (a folder, no permission); invalid_argument for more than
// `max_bytes`, of which no more are read. Any thread.
Result<std::string> read_text_file(const std::string& path, size_t max_bytes);

}  // namespace attune::formats
