// ATTUNE_CHECK: for programmer errors only. Never for what a request, file or peer can cause.
#pragma once

namespace attune::base {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}

#define ATTUNE_CHECK(condition)                                     \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::attune::base::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
