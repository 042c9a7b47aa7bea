// Where a thread's task ends, so do exceptions: of the standard library (out of memory) and of
// third parties. Nothing of ours throws.
#pragma once

#include <exception>
#include <utility>

#include "attune/status.h"

namespace attune::base {

// Only within a catch clause: the exception as internal_error.
Status caught();

// Runs `task`; internal_error with its exception's text when it throws.
template <typename Task>
Status guarded(Task&& task) {
  try {
    std::forward<Task>(task)();
    return {};
  } catch (...) {
    return caught();
  }
}

}  // namespace attune::base
